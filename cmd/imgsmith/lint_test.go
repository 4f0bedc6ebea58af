package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
)

func lintFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

const mixed = `name: mixed
pyhton: "3.11"
include:
  - {name: old, tensorflow: "2.15.1", cuda: "12.2", cudnn: "8.8"}
  - {name: lifted, tensorflow: "2.15.1", cuda: "12.2", cudnn: "8.8", allow: [{rule: cudnn-minor, reason: patched}]}
  - {name: new, tensorflow: "2.20.0"}
`

// TestLintJSON: what is not well formed and what cannot work come in one document, with exit code 2.
func TestLintJSON(t *testing.T) {
	file := lintFile(t, mixed)
	code, out, _ := runCommand(t, "lint", "--json", file)
	var d report.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got []string
	for _, e := range d.Entries {
		for _, f := range e.Lint {
			got = append(got, strings.Join([]string{e.Name, string(e.Result), f.Rule, f.Severity, strings.TrimPrefix(f.Place, file), f.Allowed}, " "))
			if f.Remedy == "" || f.Source == "" {
				t.Errorf("finding %+v is not complete", f)
			}
		}
	}
	want := []string{
		"old refused cudnn-minor refuse :4:53 ",
		"lifted ok cudnn-minor refuse :5:56 patched",
		"new ok extra-range note :6:17 ",
		"mixed refused recipe refuse :2:1 ",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || code != exitUsage || d.ExitCode != exitUsage {
		t.Errorf("exit %d, got\n%s", code, strings.Join(got, "\n"))
	}
}

// TestLintSARIF: levels, places, rules and suppressions as SARIF has them.
func TestLintSARIF(t *testing.T) {
	code, out, _ := runCommand(t, "lint", "--sarif", lintFile(t, mixed))
	var log struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string
					Rules []struct{ ID string }
				}
			}
			Results []struct {
				RuleID       string
				Level        string
				Message      struct{ Text string }
				Suppressions []struct{ Kind, Justification string }
				Locations    []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine, StartColumn int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &log); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if code != exitUsage || log.Version != "2.1.0" || len(log.Runs) != 1 || log.Runs[0].Tool.Driver.Name != "imgsmith" || len(log.Runs[0].Tool.Driver.Rules) != len(matrix.Rules()) {
		t.Fatalf("exit %d, %+v", code, log)
	}
	levels := map[string]int{}
	for _, r := range log.Runs[0].Results {
		levels[r.Level]++
		l := r.Locations[0].PhysicalLocation
		if _, ok := matrix.RuleByID(r.RuleID); !ok || l.Region.StartLine < 2 || l.Region.StartColumn < 1 || !strings.HasSuffix(l.ArtifactLocation.URI, "r.yaml") || !strings.Contains(r.Message.Text, "source: ") {
			t.Errorf("result %+v", r)
		}
		if suppressed := len(r.Suppressions) == 1 && r.Suppressions[0].Justification == "patched"; suppressed != strings.Contains(r.Message.Text, "entry lifted") {
			t.Errorf("suppressions %+v of %s", r.Suppressions, r.Message.Text)
		}
	}
	if levels["error"] != 3 || levels["note"] != 1 || levels["warning"] != 0 {
		t.Errorf("levels %v", levels)
	}
}

// TestLintOnline: B009 of the failure log, a base whose tag was deleted, and a tag that is there already.
func TestLintOnline(t *testing.T) {
	heads := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heads[r.URL.Path]++
		switch r.URL.Path {
		case "/v2/":
		case "/v2/team/tf/manifests/there", "/v2/bases/debian/manifests/12":
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("a", 64))
			w.Header().Set("Content-Length", "2")
			_, _ = w.Write([]byte("{}"))
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
		}
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	file := lintFile(t, `name: online
tensorflow: "2.19.1"
supplier: apt
include:
  - {name: there, base: `+host+`/bases/debian:12, publish: {repository: `+host+`/team/tf, tags: [there, not-there]}}
  - {name: again, base: `+host+`/bases/debian:12}
  - {name: gone, tensorflow: "2.11.1", base: `+host+`/nvidia/cuda:11.2.1-cudnn8-runtime-ubuntu20.04}
`)
	code, out, errs := runCommand(t, "lint", "--json", "--online", file)
	var d report.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, errs)
	}
	got := map[string]report.LintFinding{}
	for _, e := range d.Entries {
		for _, f := range e.Lint {
			got[e.Name+" "+f.Rule] = f
		}
	}
	if f := got["gone base-gone"]; code != exitUsage || f.Severity != "refuse" || !strings.Contains(f.Nearest, "nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04") || !strings.Contains(f.Remedy, "mirror") {
		t.Errorf("exit %d, gone: %+v", code, f)
	}
	if f := got["there tag-exists"]; f.Severity != "note" || !strings.Contains(f.Message, "team/tf:there is there already") {
		t.Errorf("there: %+v", got)
	}
	if _, ok := got["again base-gone"]; ok || heads["/v2/bases/debian/manifests/12"] != 1 {
		t.Errorf("asked %v", heads)
	}
	srv.Close()
	code, out, _ = runCommand(t, "lint", "--online", lintFile(t, "name: away\ntensorflow: \"2.19.1\"\nbase: "+host+"/debian:12\n"))
	if code != 0 || !strings.Contains(out, "could not be asked for") {
		t.Errorf("a registry out of reach: exit %d\n%s", code, out)
	}
}
