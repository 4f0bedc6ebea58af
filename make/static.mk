# Heavy targets of the static stage. IMAGE is a reference of a real TensorFlow image, ROOTS directories with unpacked
# images separated by colons (root only).
IMAGE ?=
ROOTS ?=
FUZZTIME ?= 10m

static-clean: ## the real image IMAGE has no finding, from its layers and deep
	@test -n "$(IMAGE)" || { echo "name a real image: make static-clean IMAGE=oci-layout:DIR@sha256:…" >&2; exit 2; }
	@CGO_ENABLED=0 go run ./cmd/imgsmith --store /nonexistent check "$(IMAGE)"
	@CGO_ENABLED=0 go run ./cmd/imgsmith --store /nonexistent check --deep "$(IMAGE)"

static-loader: ## predictions equal the real loader's in every unpacked image of ROOTS
	@test -n "$(ROOTS)" || { echo "name unpacked images: make static-loader ROOTS=DIR:DIR" >&2; exit 2; }
	@IMGSMITH_TEST_ROOTS="$(ROOTS)" CGO_ENABLED=0 go test ./internal/validate/static -count=1 -run '^TestEveryELFAgainstReal$$' -v

static-bench: ## time and memory on the real image IMAGE
	@test -n "$(IMAGE)" || { echo "name a real image: make static-bench IMAGE=oci-layout:DIR@sha256:…" >&2; exit 2; }
	@IMGSMITH_TEST_IMAGE="$(IMAGE)" CGO_ENABLED=0 go test ./internal/view -count=1 -run '^TestAgainstDecompressing$$' -v
	@CGO_ENABLED=0 go test ./internal/validate/static -run '^$$' -bench . -benchmem

static-fuzz: ## ELF walk, loader cache, layers, GPU code and requirements, FUZZTIME each
	@set -e; for t in elf:FuzzRead elf:FuzzGPUScanner rootfs:FuzzLayers validate/static:FuzzParseCache validate/static:FuzzRequirement; do \
		CGO_ENABLED=0 go test ./internal/$${t%:*} -run '^$$' -fuzz "^$${t#*:}$$" -fuzztime $(FUZZTIME) -parallel 1; done

.PHONY: static-clean static-loader static-bench static-fuzz
