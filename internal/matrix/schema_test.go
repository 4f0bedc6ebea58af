package matrix

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
)

var update = flag.Bool("update", false, "write generated files again")

const schemaFile = "../../docs/recipe.schema.json"

// TestSchemaFile: the published schema is the generated one.
func TestSchemaFile(t *testing.T) {
	if *update {
		if err := os.WriteFile(schemaFile, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, Schema()) {
		t.Errorf("%s is not what the code generates: run go test ./internal/matrix -run TestSchemaFile -update", schemaFile)
	}
}

// TestSchemaKeys: no key of the loader lacks a schema, and none has one too many.
func TestSchemaKeys(t *testing.T) {
	properties := schema(t)["properties"].(map[string]any)
	var got []string
	for k := range properties {
		got = append(got, k)
	}
	want := append(entryKeys(), topKeys()...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	axes := properties["axes"].(map[string]any)["properties"].(map[string]any)
	if len(axes) != len(axisKeys()) {
		t.Errorf("%d axes in the schema, %d in the loader", len(axes), len(axisKeys()))
	}
}

// TestSchemaAgrees: what Load accepts, the schema accepts; what the schema refuses, Load refuses.
func TestSchemaAgrees(t *testing.T) {
	good := []string{full, "name: a\n", string(thousand()), "name: a\npython: {version: auto}\nbase: null\nbytecode: on\n",
		"name: a\ninclude: [{name: b}]\n", "name: a\nallow: [{rule: cuda-minor, reason: tried}]\npolicy: {thresholds: {memory_ratio_min: 0.9}}\n",
		"name: a\naxes: {python: [auto], base: [\"debian:12\", \"ubuntu:24.04\"]}\nexclude: [{base: \"ubuntu:24.04\", reason: later}]\n"}
	for _, file := range recipes(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		good = append(good, string(raw))
	}
	for _, text := range good {
		mustLoad(t, text)
		if err := valid(t, text); err != nil {
			t.Errorf("the schema refuses %.80q: %v", text, err)
		}
	}
	for _, text := range []string{"base: debian:12\n", "name: a\npyhton: \"3.11\"\n", "name: a\npython: 3.11\n", "name: A\n", "name: a\ncompression: xz\n",
		"name: a\ncompression: {algorithm: gzip, level: better}\n", "name: a\nfleet: [{}]\n", "name: a\nallow: [{rule: nope, reason: x}]\n",
		"name: a\nallow: [{rule: platform, reason: x}]\n", "name: a\naxes: {python: \"3.9...3.12\"}\n", "name: a\naxes: {nope: [x]}\n", "name: a\nschema_version: 2\n",
		"name: a\npublish: {tags: [x]}\n", "name: a\nimpossible: maybe\naxes: {python: auto}\n", "name: a\ninclude: [{}]\n", "name: a\nflavor: big\n",
		"name: a\nmemory: {growth: 1}\n", "name: a\npolicy: {}\n", "name: a\nlabels: {a: 1}\n", "name: a\nos_packages: [A]\n"} {
		if valid(t, text) == nil {
			t.Errorf("the schema accepts %q", text)
		}
		if _, err := Load("r.yaml", []byte(text)); err == nil {
			t.Errorf("Load accepts %q", text)
		}
	}
}

func recipes(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../../recipes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(f string) bool { return regexp.MustCompile(`\.lock\.yaml$`).MatchString(f) })
	if len(all) < 4 {
		t.Fatalf("only %v", all)
	}
	return all
}

func schema(t *testing.T) map[string]any {
	t.Helper()
	var s map[string]any
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func valid(t *testing.T, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return validate(schema(t), v, "recipe")
}

// validate checks a value against the part of JSON Schema that Schema uses; an unknown keyword is an error.
func validate(s map[string]any, v any, at string) error {
	for key, want := range s {
		if err := keyword(s, key, want, v, at); err != nil {
			return err
		}
	}
	return nil
}

func keyword(s map[string]any, key string, want, v any, at string) error {
	fail := func() error { return fmt.Errorf("%s: %v breaks %s %v", at, v, key, want) }
	m, isMap := v.(map[string]any)
	l, isList := v.([]any)
	str, isString := v.(string)
	switch key {
	case "$schema", "title", "description":
	case "type":
		types, many := want.([]any)
		if !many {
			types = []any{want}
		}
		if !slices.Contains(types, any(typeOf(v))) {
			return fail()
		}
	case "const":
		if number(want) != number(v) && want != v {
			return fail()
		}
	case "enum":
		if !slices.Contains(want.([]any), v) {
			return fail()
		}
	case "pattern":
		if isString && !regexp.MustCompile(want.(string)).MatchString(str) {
			return fail()
		}
	case "minLength":
		if isString && len(str) < int(want.(float64)) {
			return fail()
		}
	case "minimum":
		if number(v) < want.(float64) {
			return fail()
		}
	case "minItems":
		if isList && len(l) < int(want.(float64)) {
			return fail()
		}
	case "minProperties":
		if isMap && len(m) < int(want.(float64)) {
			return fail()
		}
	case "required":
		for _, k := range want.([]any) {
			if _, ok := m[k.(string)]; isMap && !ok {
				return fail()
			}
		}
	case "propertyNames":
		for k := range m {
			if err := validate(want.(map[string]any), k, at+"."+k); err != nil {
				return err
			}
		}
	case "properties":
		for k, sub := range want.(map[string]any) {
			if x, ok := m[k]; ok {
				if err := validate(sub.(map[string]any), x, at+"."+k); err != nil {
					return err
				}
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(map[string]any)
		for k, x := range m {
			if _, ok := known[k]; ok {
				continue
			}
			sub, isSchema := want.(map[string]any)
			if !isSchema {
				return fmt.Errorf("%s: unknown key %s", at, k)
			}
			if err := validate(sub, x, at+"."+k); err != nil {
				return err
			}
		}
	case "items":
		for i, x := range l {
			if err := validate(want.(map[string]any), x, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case "anyOf":
		var last error
		for _, sub := range want.([]any) {
			if last = validate(sub.(map[string]any), v, at); last == nil {
				return nil
			}
		}
		return last
	default:
		return fmt.Errorf("%s: keyword %s is not known", at, key)
	}
	return nil
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	}
	return "number"
}

func number(v any) float64 {
	switch n := v.(type) {
	case float64:
		return n
	case uint64:
		return float64(n)
	case int64:
		return float64(n)
	case int:
		return float64(n)
	}
	return math.NaN()
}
