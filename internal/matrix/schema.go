package matrix

// Schema is written next.
func Schema() []byte { return nil }
