# Two commands do everything on a fresh machine: `make demo` runs the main job, `make test` the tests.
SHELL := /bin/bash
CACHE ?= $(or $(IMGSMITH_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/imgsmith)
ENGINES := $(CACHE)/engines/$(shell cat tools/go.mod tools/go.sum tools/Makefile tools/uv.txt | sha256sum | cut -c1-16)
BASE := $(CACHE)/base/debian-12
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
export IMGSMITH_ENGINE_DIR = $(ENGINES)
export IMGSMITH_UV = $(ENGINES)/uv
export IMGSMITH_BASE = $(BASE)

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

system: ## Debian packages that building and testing need
	@scripts/install-packages

engines: system ## pinned engines, built once into the cache
	@$(MAKE) --no-print-directory -C tools OUT=$(ENGINES) all

bin: ## the imgsmith program
	@$(GOBUILD) -o bin/imgsmith ./cmd/imgsmith

nvml: ## the NVML helper, the only cgo
	@CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o $(ENGINES)/imgsmith-nvml.part ./cmd/imgsmith-nvml 2>$(ENGINES)/imgsmith-nvml.log || { cat $(ENGINES)/imgsmith-nvml.log; exit 1; }
	@mv $(ENGINES)/imgsmith-nvml.part $(ENGINES)/imgsmith-nvml

setup: engines bin nvml base ## everything above

base: system $(BASE)/index.json ## a Debian 12 base without Python, as an OCI layout
$(BASE)/index.json: scripts/make-base
	@rm -rf $(BASE).part && mkdir -p $(dir $(BASE)) && scripts/make-base $(BASE).part bookworm && rm -rf $(BASE) && mv $(BASE).part $(BASE)

demo: setup ## the main job: the real entry, then three entries on the fake GPU
	@scripts/demo

test: setup ## everything but the full TensorFlow download and the GPU
	@scripts/test

.PHONY: help system engines bin nvml setup base demo test

include $(wildcard make/*.mk)
