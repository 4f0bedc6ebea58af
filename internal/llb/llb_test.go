package llb

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/solver/pb"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/matrix"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testConfig = `{"created":"2024-11-05T00:00:00Z","architecture":"amd64","os":"linux",
"config":{"Env":["PATH=/usr/bin:/bin","LANG=C.UTF-8","LD_LIBRARY_PATH=/somewhere","NVIDIA_VISIBLE_DEVICES=all"],
"Cmd":["bash"],"Labels":{"base.label":"kept"},"Healthcheck":{"Test":["NONE"]}},
"rootfs":{"type":"layers","diff_ids":["` + "sha256:" + digit9 + `"]},
"history":[{"created":"2024-11-05T00:00:00Z","created_by":"base","comment":"made"},{"created_by":"CMD","empty_layer":true}]}`

const digit9 = "9999999999999999999999999999999999999999999999999999999999999999"

func hex64(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func testTarget() matrix.Target {
	return matrix.Target{
		Entry: "tf219", Platform: "linux/amd64", Base: matrix.Base{Name: "debian:12", Digest: hex64("b")},
		Python: matrix.Python{Version: "3.11", From: "os"}, TensorFlow: "2.19.1", CUDA: "12.5", CuDNN: "9.3.0.75",
		Environment: map[string]string{"TF_CPP_MIN_LOG_LEVEL": "1", "LANG": "de_DE.UTF-8"}, User: "65534:65534",
		Epoch: 1735689600,
	}
}

func testBase() BaseImage {
	return BaseImage{Name: "debian:12", Ref: StoreRef("base/debian", hex64("b")), Config: []byte(testConfig)}
}

func layer(name, c string) LayerRef {
	return LayerRef{Name: name, Ref: StoreRef("component/"+name, hex64(c)), Digest: hex64(c), DiffID: hex64(c), Size: 7, Comment: "imgsmith layer"}
}

func imageLayers() []LayerRef {
	return []LayerRef{layer("os", "1"), layer("venv", "2"), layer("cudnn", "3"), layer("ld.so.cache", "4")}
}

func mustProgram(t *testing.T) func(Program, error) Program {
	return func(p Program, err error) Program {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// programs makes every kind of program from the test target.
func programs(t *testing.T) map[string]Program {
	must, tg, base, below := mustProgram(t), testTarget(), testBase(), imageLayers()[:2]
	return map[string]Program{
		"image":    must(Compile(tg, base, imageLayers(), Options{Labels: map[string]string{"imgsmith.lock": hex64("a")}})),
		"os":       must(OSStep(tg, base, []string{"python3.11", "ca-certificates"})),
		"venv":     must(VenvStep(tg, base, below[:1])),
		"ldconfig": must(LdconfigStep(tg, base, below[:1], layer("twin", "5"))),
		"bytecode": must(BytecodeStep(tg, base, below, layer("python", "6"), nil)),
	}
}

func TestGoldens(t *testing.T) {
	for name, p := range programs(t) {
		t.Run(name, func(t *testing.T) {
			got, err := Dump(p)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("program differs from its golden; run with -update when that is wanted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProgramsAreTheSameEachTime(t *testing.T) {
	first, second := programs(t), programs(t)
	for name, p := range first {
		a, err := p.Def.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		// Metadata is a map on the wire, so operations are compared one by one.
		if len(a) == 0 || len(p.Def.Def) != len(second[name].Def.Def) {
			t.Fatalf("%s: %d operations, then %d", name, len(p.Def.Def), len(second[name].Def.Def))
		}
		for i, op := range p.Def.Def {
			if !bytes.Equal(op, second[name].Def.Def[i]) {
				t.Errorf("%s: operation %d differs", name, i)
			}
		}
		if !bytes.Equal(p.Config, second[name].Config) {
			t.Errorf("%s: config differs", name)
		}
	}
}

// TestNothingOfTheHost sets what a host may have and looks for it in every byte of every program.
func TestNothingOfTheHost(t *testing.T) {
	const mark = "leak-7f3a"
	for _, name := range []string{"SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "NO_PROXY", "PIP_INDEX_URL", "PIP_CERT",
		"HOME", "PATH", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "BUILDKIT_HOST", "SOURCE_DATE_EPOCH", "TZ"} {
		t.Setenv(name, "/"+mark+"/"+name)
	}
	base := testBase()
	base.Name = "oci-layout:/" + mark + "/base"
	tg := testTarget()
	tg.Base = matrix.Base{Name: base.Name, Digest: hex64("b"), Local: true}
	must := mustProgram(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Program{
		must(Compile(tg, base, imageLayers(), Options{})),
		must(OSStep(tg, base, []string{"python3.11"})),
		must(VenvStep(tg, base, imageLayers()[:1])),
		must(LdconfigStep(tg, base, nil, layer("twin", "5"))),
		must(BytecodeStep(tg, base, imageLayers()[:2], layer("python", "6"), nil)),
	} {
		raw, err := p.Def.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		all := string(raw) + string(p.Config) + p.Name
		for _, secret := range []string{mark, "/" + host + "/", "127.0.0.1"} {
			if strings.Contains(all, secret) {
				t.Errorf("%s contains %q", p.Name, secret)
			}
		}
	}
}

// TestOnlyTheOSStepHasANetwork checks the network mode and the secrets of every exec.
func TestOnlyTheOSStepHasANetwork(t *testing.T) {
	for name, p := range programs(t) {
		for _, raw := range p.Def.Def {
			var op pb.Op
			if err := op.UnmarshalVT(raw); err != nil {
				t.Fatal(err)
			}
			exec := op.GetExec()
			if exec == nil {
				continue
			}
			wantNet, wantSecrets := pb.NetMode_NONE, 0
			if name == "os" {
				wantNet, wantSecrets = pb.NetMode_UNSET, 4
			}
			secrets := len(exec.Secretenv)
			for _, m := range exec.Mounts {
				if m.MountType == pb.MountType_SECRET {
					secrets++
					if !m.SecretOpt.Optional {
						t.Errorf("%s: secret %s is not optional", name, m.SecretOpt.ID)
					}
				}
			}
			for _, e := range exec.Secretenv {
				if !e.Optional {
					t.Errorf("%s: secret %s is not optional", name, e.ID)
				}
			}
			if exec.Network != wantNet || secrets != wantSecrets {
				t.Errorf("%s: network %v, %d secrets; want %v, %d", name, exec.Network, secrets, wantNet, wantSecrets)
			}
		}
	}
}

// TestNoStepStandsOnTheMerge: the program of the image must hold sources and one merge only.
func TestNoStepStandsOnTheMerge(t *testing.T) {
	p := programs(t)["image"]
	kinds := map[string]int{}
	for _, raw := range p.Def.Def {
		var op pb.Op
		if err := op.UnmarshalVT(raw); err != nil {
			t.Fatal(err)
		}
		switch op.Op.(type) {
		case *pb.Op_Source:
			kinds["source"]++
		case *pb.Op_Merge:
			kinds["merge"]++
		case nil:
		default:
			kinds["other"]++
		}
	}
	if diff := cmp.Diff(map[string]int{"source": 5, "merge": 1}, kinds); diff != "" {
		t.Error(diff)
	}
}

// TestOneLayerChangesOneSource: two entries that differ in one component share all other operations.
func TestOneLayerChangesOneSource(t *testing.T) {
	must := mustProgram(t)
	a := must(Compile(testTarget(), testBase(), imageLayers(), Options{}))
	layers := imageLayers()
	layers[2] = layer("cudnn", "7")
	b := must(Compile(testTarget(), testBase(), layers, Options{}))
	shared := 0
	for _, x := range a.Def.Def {
		for _, y := range b.Def.Def {
			if bytes.Equal(x, y) {
				shared++
			}
		}
	}
	if shared != 4 { // base and three of four layers; not the merge, not the result
		t.Errorf("%d operations are shared, want 4", shared)
	}
}

func TestConfig(t *testing.T) {
	must := mustProgram(t)
	var got struct {
		Config  ocispecs.ImageConfig
		History []ocispecs.History
		RootFS  ocispecs.RootFS
	}
	p := must(Compile(testTarget(), testBase(), imageLayers(), Options{}))
	if err := json.Unmarshal(p.Config, &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"LANG=de_DE.UTF-8", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
		"PATH=/opt/venv/bin:/usr/local/cuda/bin:/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL=1"}
	if diff := cmp.Diff(want, got.Config.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got.Config.User != "65534:65534" || got.Config.Labels["base.label"] != "kept" || !strings.Contains(string(p.Config), `"Healthcheck"`) {
		t.Errorf("user %q, labels %v", got.Config.User, got.Config.Labels)
	}
	if len(got.History) != 2+4 || len(got.RootFS.DiffIDs) != 1+4 {
		t.Errorf("%d history entries, %d diffIDs", len(got.History), len(got.RootFS.DiffIDs))
	}
	for i, h := range got.History {
		if h.Created == nil || h.Created.Unix() > testTarget().Epoch {
			t.Errorf("history entry %d has time %v", i, h.Created)
		}
	}
}

// TestHistoryOfABaseWithoutOne: entries must match layers, or the exporter invents some with its own time.
func TestHistoryOfABaseWithoutOne(t *testing.T) {
	base := testBase()
	base.Config = []byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["` + hex64("8") + `","` + hex64("9") + `"]}}`)
	p := mustProgram(t)(Compile(testTarget(), base, imageLayers()[:1], Options{}))
	var got struct{ History []ocispecs.History }
	if err := json.Unmarshal(p.Config, &got); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, h := range got.History {
		texts = append(texts, h.CreatedBy)
	}
	if diff := cmp.Diff([]string{"imgsmith: base layer", "imgsmith: base layer", "imgsmith: os"}, texts); diff != "" {
		t.Error(diff)
	}
}

func TestRefused(t *testing.T) {
	with := func(change func(*matrix.Target, *BaseImage, *[]LayerRef)) error {
		tg, base, layers := testTarget(), testBase(), imageLayers()
		change(&tg, &base, &layers)
		_, err := Compile(tg, base, layers, Options{})
		return err
	}
	step := func(p string) error { _, err := OSStep(testTarget(), testBase(), []string{p}); return err }
	python := func(v string) error {
		tg := testTarget()
		tg.Python.Version = v
		_, err := VenvStep(tg, testBase(), nil)
		return err
	}
	cases := map[string]struct {
		err  error
		what string
	}{
		"no layers":         {with(func(_ *matrix.Target, _ *BaseImage, l *[]LayerRef) { *l = nil }), "layers"},
		"base by tag":       {with(func(_ *matrix.Target, b *BaseImage, _ *[]LayerRef) { b.Ref = StoreHost + "/base:12" }), "base"},
		"layer by tag":      {with(func(_ *matrix.Target, _ *BaseImage, l *[]LayerRef) { (*l)[1].Ref = "x/y:1" }), "layer venv"},
		"layer digest":      {with(func(_ *matrix.Target, _ *BaseImage, l *[]LayerRef) { (*l)[0].DiffID = "" }), "layer os"},
		"platform":          {with(func(t *matrix.Target, _ *BaseImage, _ *[]LayerRef) { t.Platform = "windows/amd64" }), "platform"},
		"empty platform":    {with(func(t *matrix.Target, _ *BaseImage, _ *[]LayerRef) { t.Platform = "" }), "platform"},
		"other platform":    {with(func(t *matrix.Target, _ *BaseImage, _ *[]LayerRef) { t.Platform = "linux/arm64" }), "base config"},
		"config not JSON":   {with(func(_ *matrix.Target, b *BaseImage, _ *[]LayerRef) { b.Config = []byte("{") }), "base config"},
		"config without OS": {with(func(_ *matrix.Target, b *BaseImage, _ *[]LayerRef) { b.Config = []byte("{}") }), "base config"},
		"environment type": {with(func(_ *matrix.Target, b *BaseImage, _ *[]LayerRef) {
			b.Config = []byte(`{"architecture":"amd64","os":"linux","config":{"Env":"A=1"}}`)
		}), "base config"},
		"no packages":    {func() error { _, err := OSStep(testTarget(), testBase(), nil); return err }(), "os packages"},
		"package option": {step("--allow-unauthenticated"), "os packages"},
		"package shell":  {step("x;reboot"), "os packages"},
		"package path":   {step("./x.deb"), "os packages"},
		"python path":    {python("3.11/../x"), "python"},
		"no python":      {python(""), "python"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var invalid *InvalidError
			if !errors.As(c.err, &invalid) {
				t.Fatalf("error %v is not an InvalidError", c.err)
			}
			if invalid.What != c.what || invalid.Entry != "tf219" || invalid.Remedy == "" {
				t.Errorf("got %+v, want what %q", invalid, c.what)
			}
		})
	}
}

func TestVersionedPackagesAreAccepted(t *testing.T) {
	if _, err := OSStep(testTarget(), testBase(), []string{"python3.11=3.11.2-6+deb12u9", "libstdc++6", "libc6:amd64"}); err != nil {
		t.Error(err)
	}
}
