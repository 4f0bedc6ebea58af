package matrix

import (
	"bytes"
	"encoding/json"
	"slices"
)

// object is one JSON Schema.
type object map[string]any

// Schema returns the JSON Schema of recipes, generated from the keys and patterns that Load uses. It accepts
// whatever Load accepts and refuses most of what Load refuses; what depends on other keys is Load's alone.
func Schema() []byte {
	entry := entrySchemas()
	top := object{}
	for k, v := range entry {
		top[k] = v
	}
	defaults := object{}
	for k, v := range entry {
		if k != "name" {
			defaults[k] = v
		}
	}
	top["schema_version"] = object{"const": RecipeSchema, "description": "version of this schema; a second framework comes as a key of its own beside tensorflow"}
	top["defaults"] = closed(defaults, "keys that every entry has, as at the top")
	top["axes"] = closed(axisSchemas(entry), "the product of these values makes the entries")
	top["entry_name"] = text("template for the names of cells, for example tf{tensorflow}-py{python}")
	top["impossible"] = oneWord("what becomes of a cell that cannot work", RefuseCells, DropCells)
	top["exclude"] = object{"type": "array", "items": excludeSchema(), "description": "cells that are left out"}
	top["include"] = object{"type": "array", "minItems": 1, "items": required(closed(entry, "an entry of its own; it inherits the keys at the top"), "name")}
	s := required(closed(top, "a version matrix for imgsmith"), "name")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "imgsmith recipe"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return nil // maps, strings and numbers always encode
	}
	return b.Bytes()
}

func text(description string) object {
	return object{"type": "string", "minLength": 1, "description": description}
}

func pattern(re, description string) object {
	return object{"type": "string", "pattern": re, "description": description}
}

func oneWord(description string, words ...string) object {
	return object{"enum": words, "description": description}
}

func closed(properties object, description string) object {
	return object{"type": "object", "properties": properties, "additionalProperties": false, "description": description}
}

func open(key, description string, value object) object {
	return object{"type": "object", "propertyNames": object{"pattern": key}, "additionalProperties": value, "description": description}
}

func required(o object, keys ...string) object {
	o["required"] = keys
	return o
}

func anyOf(description string, of ...object) object {
	return object{"anyOf": of, "description": description}
}

func list(item object, description string) object {
	return object{"type": "array", "items": item, "description": description}
}

const dottedPattern = `^[0-9]{1,8}(\.[0-9]{1,8}){0,3}$`

// versionSchema is a dotted version or auto.
func versionSchema(description string) object {
	return pattern(`^(auto|[0-9]{1,8}(\.[0-9]{1,8}){0,3})$`, description)
}

func entrySchemas() object {
	switches := anyOf("", object{"type": "boolean"}, oneWord("", "on", "off"))
	sw := func(description string) object {
		s := object{"anyOf": switches["anyOf"], "description": description}
		return s
	}
	python := pattern(`^(auto|[0-9]\.[0-9]{1,2})$`, "major.minor in quotes, or auto for that of the base")
	return object{
		"name":     pattern(namePattern.String(), "unique in the recipe"),
		"base":     object{"type": []string{"string", "null"}, "minLength": 1, "description": "image reference or oci-layout:DIR"},
		"platform": text("os/arch"),
		"python": anyOf("the interpreter", python,
			required(closed(object{"version": python, "from": oneWord("who supplies it", PythonOS, PythonBase)}, ""), "version")),
		"tensorflow": anyOf("the release, or a wheel of one's own", pattern(releasePattern.String(), "2.19.1, or 2.19 for its newest patch release"),
			required(closed(object{"wheel": text("path relative to the recipe"), "sha256": pattern(hexPattern.String(), "")}, ""), "wheel", "sha256")),
		"cuda":        versionSchema("auto is the pair that the release was tested with"),
		"cudnn":       versionSchema("auto is the pair that the release was tested with"),
		"supplier":    text("wheels | apt | and-cuda; only wheels can be built"),
		"layout":      text("name of an image layout, or a path relative to the recipe"),
		"flavor":      oneWord("what is in the image beside the runtime", FlavorRuntime, FlavorDevel, FlavorJupyter),
		"keras":       oneWord("legacy: Keras 2 where the release brings Keras 3", KerasLegacy, Auto),
		"packages":    open(packagePattern.String(), "Python packages by exact version", text("version")),
		"os_packages": list(pattern(osPackagePattern.String(), ""), "packages of the base's own package manager"),
		"environment": open(variablePattern.String(), "variables of the image", object{"type": "string"}),
		"memory":      closed(object{"growth": sw("allocate as needed"), "allocator": oneWord("", "default", "cuda_malloc_async")}, "defaults of TensorFlow's GPU memory use"),
		"user":        text("user of the image"),
		"labels":      open(labelPattern.String(), "labels of the image", text("")),
		"bytecode":    sw("compile the Python files in the image"),
		"constraints": sw("keep pip from breaking what was proved"),
		"compression": compressionSchema(),
		"fleet":       list(fleetSchema(), "machines that must be able to run the image"),
		"staging":     text("repository for unproved images"),
		"publish":     anyOf("where a proved image goes", text("repository"), required(closed(object{"repository": text(""), "tags": object{"type": "array", "minItems": 1, "items": text("template")}}, ""), "repository")),
		"policy":      required(closed(object{"thresholds": thresholdSchema()}, ""), "thresholds"),
		"allow":       list(required(closed(object{"rule": object{"enum": overridable()}, "reason": text("why")}, ""), "rule", "reason"), "rules that are overridden, with a reason"),
	}
}

func thresholdSchema() object {
	p := object{}
	for _, n := range ThresholdNames() {
		p[n] = object{"type": "number", "minimum": 0}
	}
	return closed(p, "limits of the judge")
}

func compressionSchema() object {
	of := []object{oneWord("algorithm", "zstd", "gzip")}
	for _, a := range []string{"zstd", "gzip"} {
		of = append(of, required(closed(object{"algorithm": object{"const": a}, "level": oneWord("", levels(a)...)}, ""), "algorithm"))
	}
	return anyOf("how layers are encoded", of...)
}

func fleetSchema() object {
	o := closed(object{"gpu": text("short name, for example H200"), "compute_capability": pattern(capabilityPattern.String(), ""),
		"class": oneWord("", "datacenter", "geforce", "workstation", "embedded"), "driver": pattern(dottedPattern, "")}, "")
	o["minProperties"] = 1
	return o
}

func overridable() []string {
	var out []string
	for _, r := range Rules() {
		if r.Override {
			out = append(out, r.ID)
		}
	}
	return out
}

func axisSchemas(entry object) object {
	out := object{}
	for _, key := range axisKeys() {
		value := entry[key]
		if slices.Contains(rangeKeys(), key) {
			value = anyOf("a value, or a range of minors such as 2.15..2.21", entry[key].(object), pattern(`^[0-9]{1,9}\.[0-9]{1,9}\.\.[0-9]{1,9}\.[0-9]{1,9}$`, "range"))
		}
		out[key] = anyOf("one value or several", value.(object), object{"type": "array", "minItems": 1, "items": value})
	}
	return out
}

func excludeSchema() object {
	p := object{"reason": text("why these cells are left out")}
	for _, key := range axisKeys() {
		p[key] = anyOf("", text("value or range"), list(text(""), ""))
	}
	o := required(closed(p, "cells whose values all match"), "reason")
	o["minProperties"] = 2
	return o
}
