// Package witness holds tests only: proofs with the real TensorFlow image that take minutes and gigabytes, each
// asked for by a make target of its own (test-witness, test-real, bench). Other programs unpack, run and measure
// what imgsmith made. Ordinary test runs skip them, and nothing here is in a release.
package witness
