package main

import (
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// beneath is a directory that nothing done through it leaves: links are resolved here, part by part,
// and one that leads out is refused. Every part is opened without following links, so that a link
// planted in between is met, not followed.
type beneath struct {
	root string
	fd   int
	late map[string]uint32 // modes of directories, by name, that are set when all is in place
}

// mostLate bounds late; of more directories the modes are set at once.
const mostLate = 4096

func openBeneath(root string) (*beneath, error) {
	fd, err := syscall.Open(root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	return &beneath{root: root, fd: fd}, nil
}

func (b *beneath) close() { syscall.Close(b.fd) }

// parts splits a member's name into clean parts. ok is false for names that lead out: absolute ones,
// and ".." above the top.
func parts(name string) (clean []string, ok bool) {
	if strings.HasPrefix(name, "/") || hasNUL(name) {
		return nil, false
	}
	return resolve(nil, name)
}

// resolve walks name from the directory at, lexically.
func resolve(at []string, name string) ([]string, bool) {
	at = append([]string(nil), at...)
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if len(at) == 0 {
				return nil, false
			}
			at = at[:len(at)-1]
		default:
			at = append(at, part)
		}
	}
	return at, true
}

func leads(name string) *problem {
	return fail("bad_request", "the member %q leads out of the target", name).with("member", strings.ToValidUTF8(name, "\uFFFD"))
}

// parent opens the directory that holds the last part of path; with makes, missing ones are made. The
// caller closes fd.
func (b *beneath) parent(path []string, makes bool) (fd int, base string, err error) {
	links := 0
	full := strings.Join(path, "/")
restart:
	if len(path) == 0 {
		return -1, "", leads(full)
	}
	if fd, err = syscall.Dup(b.fd); err != nil {
		return -1, "", err
	}
	syscall.CloseOnExec(fd)
	for i, part := range path[:len(path)-1] {
		next, err := openDirAt(fd, part)
		if err == syscall.ENOENT && makes {
			if err = mkdirAt(fd, part, defaultDirMode); err == nil || err == syscall.EEXIST {
				next, err = openDirAt(fd, part)
			}
		}
		if err == syscall.ELOOP || err == syscall.ENOTDIR {
			target, linkErr := readlinkAt(fd, part)
			if linkErr == nil {
				syscall.Close(fd)
				if links++; links > mostLinks {
					return -1, "", &os.PathError{Op: "open", Path: full, Err: syscall.ELOOP}
				}
				through, ok := b.through(path[:i], target)
				if !ok {
					return -1, "", leads(full)
				}
				path = append(through, path[i+1:]...)
				goto restart
			}
			err = syscall.ENOTDIR
		}
		syscall.Close(fd)
		if err != nil {
			return -1, "", &os.PathError{Op: "open", Path: full, Err: err}
		}
		fd = next
	}
	return fd, path[len(path)-1], nil
}

// through is where a link in the directory at leads, as parts below the root.
func (b *beneath) through(at []string, target string) ([]string, bool) {
	if strings.HasPrefix(target, "/") {
		root := strings.TrimRight(b.root, "/") + "/"
		inside, found := strings.CutPrefix(target+"/", root)
		if !found {
			return nil, false
		}
		return resolve(nil, inside)
	}
	return resolve(at, target)
}

func openDirAt(dir int, name string) (int, error) {
	return syscall.Openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
}

func mkdirAt(dir int, name string, mode uint32) error { return syscall.Mkdirat(dir, name, mode) }

func readlinkAt(dir int, name string) (string, error) {
	at, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	buffer := make([]byte, 4096)
	n, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(at)),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(buffer[:n]), nil
}

func symlinkAt(target string, dir int, name string) error {
	a, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	b, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(a)), uintptr(dir), uintptr(unsafe.Pointer(b)))
	return orNil(errno)
}

func linkAt(fromDir int, from string, toDir int, to string) error {
	a, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	b, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromDir), uintptr(unsafe.Pointer(a)), uintptr(toDir), uintptr(unsafe.Pointer(b)), 0, 0)
	return orNil(errno)
}

// removeAt removes a file or link, not a directory. Missing is success.
func removeAt(dir int, name string) error {
	err := syscall.Unlinkat(dir, name)
	if err == syscall.ENOENT {
		return nil
	}
	return err
}

func orNil(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
