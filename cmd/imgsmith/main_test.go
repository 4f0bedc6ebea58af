package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"imgsmith/internal/engine/child"
	"imgsmith/internal/publish"
	"imgsmith/internal/report"
)

// cleanly removes what tests share when the last has ended.
type cleanly struct{ m *testing.M }

func (c cleanly) Run() int {
	code := c.m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestMain makes the test binary an imgsmith, and the init that an engine runs under.
func TestMain(m *testing.M) {
	if ran, code := child.RunInitIfRequested(); ran {
		os.Exit(code)
	}
	testscript.Main(cleanly{m}, map[string]func(){"imgsmith": func() { os.Exit(run()) }})
}

// TestScripts runs what needs neither engine nor GPU. Beside testscript's own commands there are
// "code N COMMAND…", which demands an exit code, and "document N COMMAND…", which also demands that standard
// output is one document that names it.
func TestScripts(t *testing.T) {
	recipes, err := filepath.Abs("../../recipes")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("RECIPES", recipes)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": wantCode, "document": wantDocument},
	})
}

func wantCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func wantDocument(ts *testscript.TestScript, neg bool, args []string) {
	wantCode(ts, neg, args)
	d, err := report.ReadJSON(strings.NewReader(ts.ReadFile("stdout")))
	ts.Check(err)
	if strconv.Itoa(d.ExitCode) != args[0] || d.SchemaVersion != report.SchemaVersion || len(d.Entries) == 0 {
		ts.Fatalf("the document says exit code %d, schema version %d, %d entries", d.ExitCode, d.SchemaVersion, len(d.Entries))
	}
}

func TestCombine(t *testing.T) {
	for _, c := range []struct {
		codes []int
		want  int
	}{
		{nil, 0},
		{[]int{0, 0}, 0},
		{[]int{0, 4}, 4},
		{[]int{4, 5}, 5},
		{[]int{4, 5, 3}, 3},
		{[]int{3, 4, 1, 5}, 1},
		{[]int{1, 3, 2, 4, 5}, 2},
		{[]int{2, 1, 130, 3}, 130},
	} {
		if got := combine(c.codes...); got != c.want {
			t.Errorf("%v: %d, want %d", c.codes, got, c.want)
		}
	}
}

func TestCodes(t *testing.T) {
	for r, want := range map[report.Result]int{
		report.ResultOK: 0, report.ResultStaged: 0, report.ResultProved: 0, report.ResultPublished: 0, report.ResultRefused: 2,
		report.ResultFailed: 3, report.ResultNotProved: 4, report.ResultError: 1, report.ResultUnknown: 1, "a word of tomorrow": 1,
	} {
		if got := codeOfResult(r); got != want {
			t.Errorf("result %q: %d, want %d", r, got, want)
		}
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{fmt.Errorf("x: %w", &usageError{errors.New("y")}), 2},
		{&publish.RefusedError{}, 1},
		{errors.Join(errors.New("x"), t.Context().Err()), 1},
	} {
		if got := codeOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// TestNothingAsked: a document without entries is not a success.
func TestNothingAsked(t *testing.T) {
	var out strings.Builder
	a := &app{stdout: &out, stderr: &out, env: func(string) string { return "" }}
	if err := a.write(report.Document{Command: "build"}); err != nil || a.code != exitError {
		t.Errorf("code %d, %v", a.code, err)
	}
}
