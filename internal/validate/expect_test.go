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
