//go:build tools

// Package tools pins the engines that imgsmith ships with or is tested against. It holds no code of its own.
package tools

import (
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
	_ "github.com/moby/buildkit/cmd/buildkitd"
	_ "github.com/moby/moby/v2/cmd/dockerd"
	_ "github.com/opencontainers/runc"
)
