package report

// Dropped is a cell of the matrix that is no entry, with the reason.
type Dropped struct {
	Name   string            `json:"name"`
	Cell   map[string]string `json:"cell,omitempty"` // value per axis
	Rule   string            `json:"rule"`           // exclude, or the rule that refuses it
	Reason string            `json:"reason"`
	Source string            `json:"source,omitempty"`
	Line   int               `json:"line"`
}

// Plan says what a build would make. Sizes are compressed bytes of wheels and OS packages as the lock has them;
// layers are a little larger or smaller.
type Plan struct {
	Cells      int         `json:"cells"` // of the product, entries and dropped ones
	Locked     bool        `json:"locked"`
	WhyNot     string      `json:"why_not_locked,omitempty"`
	Bytes      int64       `json:"bytes"`   // of every entry on its own
	Unique     int64       `json:"unique"`  // each file once
	Missing    int64       `json:"missing"` // of those, not in the store
	Layers     []PlanLayer `json:"layers,omitempty"`
	LayerCount int         `json:"layer_count"` // of every entry on its own
}

// PlanLayer is one layer that entries share.
type PlanLayer struct {
	Name    string   `json:"name"`
	Key     string   `json:"key"`
	Wheels  int      `json:"wheels"`
	Bytes   int64    `json:"bytes"`
	Made    bool     `json:"made"` // in the store
	Entries []string `json:"entries"`
}

func (p *printer) plan(plan *Plan) {
	if plan == nil {
		return
	}
	if !plan.Locked {
		p.line("no bytes and layers: %s; run imgsmith lock", plan.WhyNot)
		return
	}
	for _, l := range plan.Layers {
		state := "to make"
		if l.Made {
			state = "in the store"
		}
		p.line("  layer    %s %s: %d wheels, %.1f MB, for %d entries, %s", l.Name, l.Key[:min(12, len(l.Key))], l.Wheels, float64(l.Bytes)/1e6, len(l.Entries), state)
	}
	p.line("%d layers instead of %d; %.1f MB of packages instead of %.1f MB; %.1f MB to fetch", len(plan.Layers), plan.LayerCount,
		float64(plan.Unique)/1e6, float64(plan.Bytes)/1e6, float64(plan.Missing)/1e6)
}
