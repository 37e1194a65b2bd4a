package main

import (
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

const (
	defaultFileMode = 0o644
	defaultDirMode  = 0o755
	mostLinks       = 40
	copyBytes       = 256 << 10
	tempPrefix      = ".sandbox-guest-"
)

// newFile is a file that is being written beside its place. Commit moves it there in one step; until
// then its place is untouched.
type newFile struct {
	who      account
	target   string // links followed
	temp     string
	file     *os.File
	mode     uint32
	replaced bool
}

// createBeside opens a temporary file in the directory where p leads. Parents are made. mode nil: that
// of the file it replaces, else the default.
func createBeside(who account, p string, mode *uint32) (*newFile, error) {
	n := &newFile{who: who}
	err := as(who, func() error {
		target, err := followLinks(p)
		if err != nil {
			return err
		}
		n.target = target
		n.mode = defaultFileMode
		var now syscall.Stat_t
		switch err := syscall.Lstat(target, &now); {
		case err == nil && now.Mode&syscall.S_IFMT == syscall.S_IFDIR:
			return fail("file_is_directory", "%s is a directory", target)
		case err == nil && now.Mode&syscall.S_IFMT != syscall.S_IFREG:
			return notRegular(target)
		case err == nil:
			n.replaced = true
			n.mode = now.Mode & 0o7777
		case err == syscall.ENOENT && !strings.HasSuffix(p, "/"):
			if err := makeParents(path.Dir(target)); err != nil {
				return err
			}
		case err == syscall.ENOENT:
			return fail("file_is_directory", "%s names a directory", p)
		default:
			return &os.PathError{Op: "stat", Path: target, Err: err}
		}
		if mode != nil {
			n.mode = *mode & 0o7777
		}
		n.temp = path.Dir(target) + "/" + tempPrefix + randomID()
		n.file, err = os.OpenFile(n.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// copy writes a body. The network is waited for with nothing held.
func (n *newFile) copy(body io.Reader) error {
	buffer := make([]byte, copyBytes)
	for {
		m, err := io.ReadFull(body, buffer)
		if m > 0 {
			if writeErr := n.write(buffer[:m]); writeErr != nil {
				return writeErr
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

func (n *newFile) write(data []byte) error {
	fileSlots <- struct{}{}
	defer func() { <-fileSlots }()
	_, err := n.file.Write(data)
	return err
}

// commit puts the file in its place.
func (n *newFile) commit() error {
	err := as(n.who, func() error {
		if err := syscall.Fchmod(int(n.file.Fd()), n.mode); err != nil {
			return err
		}
		if err := n.file.Close(); err != nil {
			return err
		}
		return os.Rename(n.temp, n.target)
	})
	if err != nil {
		n.discard()
	}
	return err
}

// discard leaves nothing.
func (n *newFile) discard() {
	_ = as(n.who, func() error {
		n.file.Close()
		return os.Remove(n.temp)
	})
}

func writeWhole(who account, p string, data []byte, mode uint32) error {
	n, err := createBeside(who, p, &mode)
	if err != nil {
		return err
	}
	if err := n.write(data); err != nil {
		n.discard()
		return err
	}
	return n.commit()
}

func notRegular(p string) *problem {
	return fail("file_forbidden", "%s is no regular file", p).with("type", "other")
}

// followLinks is where writing to p would write: the links of its last part are followed, also to a
// place that does not exist yet. The kernel follows those of the directories.
func followLinks(p string) (string, error) {
	for range mostLinks {
		trimmed := strings.TrimRight(p, "/")
		if trimmed == "" {
			return "/", nil
		}
		target, err := os.Readlink(trimmed)
		if err != nil {
			return trimmed, nil // no link, or the next call tells what is wrong
		}
		if !strings.HasPrefix(target, "/") {
			// Not cleaned: ".." behind a linked directory leads where the kernel says.
			target = path.Dir(trimmed) + "/" + target
		}
		p = target
	}
	return "", &os.PathError{Op: "open", Path: p, Err: syscall.ELOOP}
}

func makeParents(dir string) error {
	return makeDirs(dir, defaultDirMode)
}

// makeDirs makes a directory and what is missing above it. There already is success.
func makeDirs(dir string, mode uint32) error {
	err := syscall.Mkdir(dir, mode)
	switch err {
	case nil:
		return syscall.Chmod(dir, mode&0o7777)
	case syscall.EEXIST:
		var now syscall.Stat_t
		if err := syscall.Stat(dir, &now); err != nil {
			return &os.PathError{Op: "stat", Path: dir, Err: err}
		}
		if now.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			return fail("file_not_directory", "%s is no directory", dir)
		}
		return nil
	case syscall.ENOENT:
		above := path.Dir(strings.TrimRight(dir, "/"))
		if above == dir || above == "." {
			break
		}
		if err := makeDirs(above, defaultDirMode); err != nil {
			return err
		}
		if err = syscall.Mkdir(dir, mode); err == nil {
			return syscall.Chmod(dir, mode&0o7777)
		}
		if err == syscall.EEXIST {
			return nil
		}
	}
	return &os.PathError{Op: "mkdir", Path: dir, Err: err}
}

// makeWorkdir makes the workdir if it is missing, owned by the user: with the guest's own rights,
// since it may lie where the user may not write.
func makeWorkdir(dir string, who account) error {
	return as(account{}, func() error {
		var now syscall.Stat_t
		switch err := syscall.Stat(dir, &now); {
		case err == nil && now.Mode&syscall.S_IFMT == syscall.S_IFDIR:
			return nil
		case err == nil:
			return fail("file_not_directory", "%s is no directory", dir)
		}
		if err := makeDirs(dir, defaultDirMode); err != nil {
			return err
		}
		if who.switched {
			return syscall.Chown(dir, who.uid, who.gid)
		}
		return nil
	})
}
