# Proofs with the real TensorFlow image: each takes minutes, gigabytes and root. A skip makes them fail.
HEAVY = TMPDIR=$(CACHE)/tmp IMGSMITH_BIN=$(CURDIR)/bin/imgsmith scripts/heavy
test-witness test-real bench: export IMGSMITH_STORE := $(or $(IMGSMITH_STORE),$(CACHE)/store)

test-witness: setup ## containerd, a Docker engine and go-containerregistry unpack the real image; pip installs its wheels
	@IMGSMITH_TEST_WITNESS=1 $(HEAVY) TestWitness ./internal/witness
	@scripts/heavy-wheels

test-real: setup ## the real image on the CPU, its digests, and a second build
	@IMGSMITH_TEST_REAL=1 $(HEAVY) TestReal ./internal/witness

bench: setup ## wheels to finished image, against pip install and a zstd export on the same engine
	@IMGSMITH_BENCH=1 $(HEAVY) TestBench ./internal/witness

.PHONY: test-witness test-real bench
