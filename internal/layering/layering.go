// Package layering holds the import rules of the project as data and the tests that keep them. It has no
// code that the program uses.
package layering
