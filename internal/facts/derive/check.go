package derive

import (
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// Difference is a field in which the table and a wheel disagree.
type Difference struct {
	Field, Table, Wheel string
}

// String writes it for a person.
func (d Difference) String() string {
	return fmt.Sprintf("%s: the table has %q, the wheel shows %q", d.Field, d.Table, d.Wheel)
}

// Check compares every fact of a release that a wheel can show with what the wheel shows. A range in the table
// may be narrower than the metadata: it then holds a cap that the metadata forgot.
func Check(table *facts.Table, o *Observed) ([]Difference, error) {
	tf, err := table.TensorFlow(o.Version)
	if err != nil {
		return nil, err
	}
	doc, err := Make(o, table)
	if err != nil {
		return nil, err
	}
	row := doc.TensorFlow[0]
	var out []Difference
	compare := func(field, have, shown string) {
		if have != shown {
			out = append(out, Difference{field, have, shown})
		}
	}
	list := func(l []string) string { return strings.Join(l, " ") }
	compare("cuda.tested", tf.CUDATested, row.CUDA.Tested)
	compare("cudnn.major", fmt.Sprint(tf.CuDNNMajor), fmt.Sprint(row.CuDNN.Major))
	if o.Headers.CUDNN != "" {
		compare("cudnn.compiled", tf.CuDNNCompiled, o.Headers.CUDNN)
	}
	compare("gpu_code.sass", list(tf.SASS), list(row.GPUCode.SASS))
	compare("gpu_code.ptx", list(tf.PTX), list(row.GPUCode.PTX))
	compare("gpu_code.min_compute_capability", tf.MinComputeCapability, row.GPUCode.Min)
	compare("gpu_code.modules", modulesText(tf.Modules), derivedText(row.GPUCode.Modules))
	compare("min_glibc", tf.MinGlibc, row.MinGlibc)
	compare("wheel_tag", tf.WheelTag, row.WheelTag)
	compare("keras", strings.Join(clauses(tf.Keras), ","), row.Keras)
	compare("nccl_header", tf.NCCL, row.NCCL)
	compare("dlopen_set", tf.DlopenID, row.DlopenSet)
	compare("dlopen caller", tf.DlopenCaller, o.Libraries.Caller)
	compare("search.kind", tf.Search.Kind, row.Search.Kind)
	compare("search.lacks", list(tf.Search.Lacks), list(row.Search.Lacks))
	out = append(out, ranges(tf, o, row)...)
	return append(out, python(tf, o)...), nil
}

// ranges compares requirements: every clause of the metadata must be in the table.
func ranges(tf facts.TensorFlow, o *Observed, row Row) []Difference {
	var out []Difference
	for _, r := range []struct{ name, have string }{{"numpy", tf.NumPy}, {"protobuf", tf.Protobuf}} {
		for _, line := range o.Requires {
			q := ParseRequirement(line)
			if q.Name != r.name || !q.Holds(Environment{Python: row.Python.Min}) {
				continue
			}
			if m := Missing(r.have, q.Spec); len(m) > 0 && !narrower(r.have, m) {
				out = append(out, Difference{r.name, r.have, q.Spec})
			}
		}
	}
	shown := Extra{Packages: map[string]string{}}
	if row.Extra != nil {
		shown = *row.Extra
	}
	if tf.Extra.Style != shown.Style || tf.Extra.Suffix != shown.Suffix {
		out = append(out, Difference{"extra", tf.Extra.Style + " " + tf.Extra.Suffix, shown.Style + " " + shown.Suffix})
	}
	names := shown.Names()
	for name := range tf.Extra.Packages {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if facts.Compare(tf.Extra.Packages[n], shown.Packages[n]) != 0 {
			out = append(out, Difference{"extra." + n, tf.Extra.Packages[n], shown.Packages[n]})
		}
	}
	return out
}

// narrower tells whether the table has stricter clauses in place of those that it lacks.
func narrower(have string, missing []string) bool {
	for _, m := range missing {
		ok := false
		for _, c := range clauses(have) {
			switch {
			case strings.HasPrefix(m, "<") && strings.HasPrefix(c, "<"):
				ok = ok || facts.Compare(strings.TrimLeft(c, "<="), strings.TrimLeft(m, "<=")) < 0
			case strings.HasPrefix(m, ">") && strings.HasPrefix(c, ">"):
				ok = ok || facts.Compare(strings.TrimLeft(c, ">="), strings.TrimLeft(m, ">=")) > 0
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// python checks that the range of the table holds the wheel's interpreter and what the metadata asks for.
func python(tf facts.TensorFlow, o *Observed) []Difference {
	var out []Difference
	for _, t := range o.Tags {
		v, ok := strings.CutPrefix(strings.SplitN(t, "-", 2)[0], "cp3")
		if ok && (facts.Compare("3."+v, tf.PythonMin) < 0 || facts.Compare("3."+v, tf.PythonMax) > 0) {
			out = append(out, Difference{"python", tf.PythonMin + " to " + tf.PythonMax, t})
		}
	}
	if floor := strings.TrimPrefix(o.RequiresPython, ">="); floor != o.RequiresPython && facts.Compare(floor, tf.PythonMin) != 0 {
		out = append(out, Difference{"python.min", tf.PythonMin, o.RequiresPython})
	}
	if c := slices.Clone(o.Classified); len(c) > 0 {
		slices.SortFunc(c, facts.Compare)
		if top := c[len(c)-1]; facts.Compare(top, tf.PythonMax) != 0 {
			out = append(out, Difference{"python.max", tf.PythonMax, "classifier " + top})
		}
	}
	return out
}

func modulesText(list []facts.Modules) string {
	var out []Modules
	for _, m := range list {
		out = append(out, Modules{m.SASS, m.PTX, m.PTXISA, m.Count})
	}
	return derivedText(out)
}

func derivedText(list []Modules) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%d×(sass %s; ptx %s, ISA %s)", m.Count, strings.Join(m.SASS, " "), strings.Join(m.PTX, " "), m.PTXISA))
	}
	return strings.Join(out, ", ")
}
