// Package rootfs holds root file systems as plain values: nodes, layers with whiteouts, and the tree that
// a container runtime would see. It reads tar streams that callers open; it never touches the host's disk.
package rootfs

import "imgsmith/internal/elf"

// Type tells what a node is.
type Type string

// The node types. A hard link is resolved to Regular when layers are applied.
const (
	Dir      Type = "dir"
	Regular  Type = "file"
	Symlink  Type = "link"
	Hardlink Type = "hardlink"
	Device   Type = "device"   // character, block, fifo or socket
	Whiteout Type = "whiteout" // Path is the removed path
	Opaque   Type = "opaque"   // Path is the directory whose lower content is hidden
)

// Node is one path of a layer or tree.
type Node struct {
	Path   string     `json:"path"` // slash-separated, relative to the root, no leading slash
	Type   Type       `json:"type"`
	Mode   uint32     `json:"mode"` // permission bits with setuid, setgid and sticky as in tar (octal 07777)
	UID    int        `json:"uid,omitempty"`
	GID    int        `json:"gid,omitempty"`
	Size   int64      `json:"size,omitempty"`   // bytes
	Digest string     `json:"digest,omitempty"` // "sha256:<hex>" of a regular file's content
	Link   string     `json:"link,omitempty"`   // target of a symlink, or path of a hard link's source
	MTime  int64      `json:"mtime,omitempty"`  // seconds since the epoch
	ELF    *elf.Facts `json:"elf,omitempty"`
	// ELFError says why a file that starts like ELF has no facts.
	ELFError string `json:"elf_error,omitempty"`
	Data     []byte `json:"data,omitempty"` // content of small files that a check reads (loader configuration, metadata)
	// Head is the beginning of a file of which Options.Head asks for it, where the content is not kept.
	Head *[HeadSize]byte `json:"head,omitempty"`
	GPU  *elf.GPUCode    `json:"gpu,omitempty"` // code for GPUs in an ELF file, when Options.GPUCode asked for it
}

// HeadSize is the length of Node.Head: what a .pyc file says of its source.
const HeadSize = 16

// Layer is one file-system change set in tar order.
type Layer []Node
