// Package early reads what the Go runtime changes before main can look.
//
// It must be initialised before package os, which raises the soft limit on open files for its own
// process: packages are initialised in the order of their import paths, and "guest/early" comes first.
package early

import "syscall"

// Nofile is the limit on open files that this process was started with; commands get it back.
var Nofile = func() (limit syscall.Rlimit) {
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return limit
}()
