// Package recipes embeds the shipped matrices and image layouts. It holds data only; internal/matrix and
// internal/layout read it.
package recipes

import "embed"

// Files holds the shipped data: NAME.yaml is a recipe, layouts/NAME.yaml an image layout.
//
//go:embed *.yaml layouts/*.yaml
var Files embed.FS
