// Package report holds the one versioned document that every output is written from, and its writers. A
// writer decides nothing: what is in the document is what was decided elsewhere.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"imgsmith/internal/engine"
	"imgsmith/internal/gpu"
	"imgsmith/internal/launch"
	"imgsmith/internal/validate"
)

// SchemaVersion is the version of the document's JSON form.
const SchemaVersion = 1

// Document is the result of one command.
type Document struct {
	SchemaVersion int            `json:"schema_version"`
	Tool          string         `json:"tool"`    // "imgsmith VERSION"
	Command       string         `json:"command"` // build, verify, check, lint
	Recipe        string         `json:"recipe,omitempty"`
	Engine        *engine.Info   `json:"engine,omitempty"`
	Host          *gpu.Inventory `json:"host,omitempty"`
	HostError     string         `json:"host_error,omitempty"` // why there is no host inventory
	Fake          bool           `json:"fake"`                 // a fake GPU took part: proves the pipeline, never an image
	ExitCode      int            `json:"exit_code"`
	Dropped       []Dropped      `json:"dropped,omitempty"` // cells of the matrix that are no entries
	Plan          *Plan          `json:"plan,omitempty"`    // of the command plan
	Changes       []string       `json:"changes,omitempty"` // of the lock, in lines
	Entries       []Entry        `json:"entries"`
}

// Stage says how far an entry came; it names the step that Status is about.
type Stage string

// The stages of an entry, in order.
const (
	StageLint    Stage = "lint"
	StageLock    Stage = "lock"
	StageFetch   Stage = "fetch"
	StageMake    Stage = "make"
	StageStatic  Stage = "static"
	StageBuild   Stage = "build"
	StageVerify  Stage = "verify"
	StagePublish Stage = "publish"
)

// Result is the word for an entry as a whole.
type Result string

// The results. Zero is unknown and never counts as success.
const (
	ResultUnknown   Result = ""
	ResultOK        Result = "ok"         // lint or check only: nothing to prove
	ResultStaged    Result = "staged"     // built, static check passed, staged as asked
	ResultProved    Result = "proved"     // all layers passed; nothing asked to publish
	ResultPublished Result = "published"  // all layers passed and tagged
	ResultRefused   Result = "refused"    // the matrix entry cannot work
	ResultFailed    Result = "failed"     // the image failed a stage
	ResultNotProved Result = "not_proved" // not run, inconclusive, or the host at fault
	ResultError     Result = "error"      // an operational error
)

// Entry is what became of one matrix entry or image.
type Entry struct {
	Name       string                `json:"name"`
	Result     Result                `json:"result"`
	Stage      Stage                 `json:"stage"` // where it ended
	Reason     string                `json:"reason,omitempty"`
	Remedy     string                `json:"remedy,omitempty"`
	Versions   map[string]string     `json:"versions,omitempty"` // tensorflow, python, cuda, cudnn, base
	Lint       []LintFinding         `json:"lint,omitempty"`
	Image      *Image                `json:"image,omitempty"`
	Static     *validate.LayerResult `json:"static,omitempty"`
	Prediction *validate.Expect      `json:"prediction,omitempty"` // what the judge compares with
	Verdict    *validate.Verdict     `json:"verdict,omitempty"`
	Transcript *launch.Transcript    `json:"transcript,omitempty"`
	Activity   []gpu.Activity        `json:"activity,omitempty"`  // the host's GPUs while the image ran
	Published  []string              `json:"published,omitempty"` // references, tag and digest
	Check      *Check                `json:"check,omitempty"`     // what the check command adds
}

// Check is what was found in an image that nothing was promised about.
type Check struct {
	Found  []Found       `json:"found"`
	Entry  string        `json:"entry,omitempty"` // the keys of the recipe entry that the image corresponds to; empty: none
	Lint   []LintFinding `json:"lint,omitempty"`  // what the rules say against that entry, or why there is none
	Mapped []Mapped      `json:"mapped"`
	Trace  []string      `json:"trace,omitempty"`
}

// Found is one version with what said so.
type Found struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	From    string `json:"from"`
}

// Mapped is one file that the loader is predicted to map, and the rule by which it was found.
type Mapped struct {
	Soname string `json:"soname"`
	Path   string `json:"path"`
	Rule   string `json:"rule"`
}

// LintFinding is one answer of the version rules.
type LintFinding struct {
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`
	Nearest  string `json:"nearest,omitempty"`
	Source   string `json:"source,omitempty"`
	Place    string `json:"place,omitempty"` // FILE:LINE:COLUMN
	// Confidence is that of the source: verified | reported | unknown.
	Confidence string `json:"confidence,omitempty"`
	Allowed    string `json:"allowed,omitempty"` // the recipe's reason for overriding the rule
	Excerpt    string `json:"excerpt,omitempty"` // the line with a mark below the column
}

// Image is a built image.
type Image struct {
	Reference string  `json:"reference"` // how this tool is asked for it again
	Digest    string  `json:"digest"`    // manifest
	Size      int64   `json:"size"`      // compressed bytes
	Layers    []Layer `json:"layers"`
	Reused    bool    `json:"reused"` // every layer was made before
}

// Layer is one layer of a built image.
type Layer struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	DiffID string `json:"diff_id"`
	Size   int64  `json:"size"` // compressed bytes
	Made   bool   `json:"made"` // made in this run, not found in the store
}

// WriteJSON writes the document as indented JSON.
func WriteJSON(w io.Writer, d Document) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("writing the document: %w", err)
	}
	return nil
}

// ReadJSON reads a document; an unknown schema version is an error.
func ReadJSON(r io.Reader) (Document, error) {
	var d Document
	if err := json.NewDecoder(r).Decode(&d); err != nil {
		return Document{}, fmt.Errorf("reading the document: %w", err)
	}
	if d.SchemaVersion != SchemaVersion {
		return Document{}, fmt.Errorf("reading the document: schema version %d, this program knows %d", d.SchemaVersion, SchemaVersion)
	}
	return d, nil
}
