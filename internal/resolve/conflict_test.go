package resolve

import "testing"

// TestConflictIn: the two sides of uv's texts, as it wrote them on the day of the test.
func TestConflictIn(t *testing.T) {
	for _, tc := range []struct{ text, asks, needs string }{
		{`error: No solution found when resolving dependencies
  cause: Because tensorflow==2.17.1 depends on numpy{python_full_version < '3.12'}>=1.23.5,<2.0.0 and you require numpy==2.1.0, we can conclude that your requirements and tensorflow==2.17.1 are incompatible.
         And because you require tensorflow==2.17.1, we can conclude that your requirements are unsatisfiable.`,
			"the recipe asks for numpy==2.1.0", "tensorflow==2.17.1 needs numpy>=1.23.5,<2.0.0"},
		{`Because tensorflow==2.19.1 depends on numpy>=1.26.0,<2.2.0 and you require tensorflow==2.19.1, we can conclude that you require numpy>=1.26.0,<2.2.0.
         And because you require numpy==1.20, we can conclude that your requirements are unsatisfiable.`,
			"the recipe asks for numpy==1.20", "tensorflow==2.19.1 needs numpy>=1.26.0,<2.2.0"},
		{`Because torch==2.6.0 depends on nvidia-cuda-nvrtc-cu12{platform_machine == 'x86_64' and sys_platform == 'linux'}==12.4.127 and tensorflow[and-cuda]==2.19.1 depends on nvidia-cuda-nvrtc-cu12==12.5.82, we can conclude that tensorflow[and-cuda]==2.19.1 and torch==2.6.0 are incompatible.`,
			"torch==2.6.0 needs nvidia-cuda-nvrtc-cu12==12.4.127", "tensorflow[and-cuda]==2.19.1 needs nvidia-cuda-nvrtc-cu12==12.5.82"},
		{`Because all versions of tensorflow depend on small>=1 and you require tensorflow[and-cuda]==2.19.1, we can conclude that you require small>=1. And because you require small==0.5, we can conclude that your requirements are unsatisfiable.`,
			"the recipe asks for small==0.5", "tensorflow needs small>=1"},
		{"error: dns error", "", ""},
	} {
		c := conflictIn(tc.text)
		switch {
		case c == nil && tc.asks != "":
			t.Errorf("%.60q: nothing found", tc.text)
		case c != nil && (c.Asks != tc.asks || c.Needs != tc.needs):
			t.Errorf("%.60q:\n got %q, %q\nwant %q, %q", tc.text, c.Asks, c.Needs, tc.asks, tc.needs)
		}
	}
}
