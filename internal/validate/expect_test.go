package validate

import "testing"

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		have, want string
		yes, ok    bool
	}{{"580.159.04", "525.60.13", true, true}, {"525.60.13", "525.60.13", true, true}, {"525.60.9", "525.60.13", false, true},
		{"9.10", "9.3", true, true}, {"9", "9.0", true, true}, {"", "1", false, false}, {"a.b", "1", false, false}} {
		if yes, ok := atLeast(c.have, c.want); yes != c.yes || ok != c.ok {
			t.Errorf("atLeast(%q, %q) = %v %v", c.have, c.want, yes, ok)
		}
	}
	if cudaNumber(12050) != "12.5" || cudnnNumber(90300) != "9.3.0" || cudnnNumber(8907) != "8.9.7" {
		t.Error("version numbers are read wrong")
	}
}

// TestThresholdsWith: a recipe tightens limits and never loosens them.
func TestThresholdsWith(t *testing.T) {
	th, err := DefaultThresholds()
	if err != nil {
		t.Fatal(err)
	}
	got, err := th.With(map[string]float64{"memory_ratio_min": 0.99, "memory_ratio_max": 1.01, "memory_used_min": 1 << 30})
	if err != nil || got.MemoryRatioMin != 0.99 || got.MemoryRatioMax != 1.01 || got.MemoryUsedMin != 1<<30 {
		t.Errorf("got %+v, %v", got, err)
	}
	if same, err := th.With(map[string]float64{"memory_ratio_max": th.MemoryRatioMax}); err != nil || same.MemoryRatioMax != th.MemoryRatioMax {
		t.Errorf("got %+v, %v", same, err)
	}
	for _, loose := range []map[string]float64{{"memory_ratio_min": 0.1}, {"memory_ratio_max": 2}, {"memory_used_min": 0}, {"nope": 1}} {
		if _, err := th.With(loose); err == nil {
			t.Errorf("%v is accepted", loose)
		}
	}
}
