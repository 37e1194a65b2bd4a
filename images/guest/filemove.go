package main

import (
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"unsafe"
)

// move renames, and where that crosses file systems copies and removes.
func move(from, to string, overwrite bool) error {
	dir := path.Dir(strings.TrimRight(to, "/"))
	if err := makeParents(dir); err != nil {
		return err
	}
	err := rename(from, to, overwrite)
	if err != syscall.EXDEV {
		if err != nil {
			return &os.LinkError{Op: "move", Old: from, New: to, Err: err}
		}
		return nil
	}
	if !overwrite {
		if _, err := os.Lstat(to); err == nil {
			return fail("file_exists", "%s exists", to)
		}
	}
	temp := dir + "/" + tempPrefix + randomID()
	if err := copyTree(from, temp); err != nil {
		os.RemoveAll(temp)
		return err
	}
	if err := rename(temp, to, overwrite); err != nil {
		os.RemoveAll(temp)
		return &os.LinkError{Op: "move", Old: from, New: to, Err: err}
	}
	return os.RemoveAll(from)
}

func rename(from, to string, overwrite bool) error {
	if overwrite {
		return syscall.Rename(from, to)
	}
	const atCwd, noReplace = ^uintptr(99), 1
	a, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	b, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(sysRenameat2, atCwd, uintptr(unsafe.Pointer(a)), atCwd, uintptr(unsafe.Pointer(b)), noReplace, 0)
	if errno == syscall.EINVAL || errno == syscall.ENOSYS { // this file system cannot refuse by itself
		if _, err := os.Lstat(to); err == nil {
			return syscall.EEXIST
		}
		return syscall.Rename(from, to)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// copyTree copies files, directories and links with their modes; all else is refused.
func copyTree(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		return copyDirectory(from, to, info)
	case info.Mode().IsRegular():
		return copyFile(from, to, info)
	}
	return notRegular(from)
}

func copyDirectory(from, to string, info os.FileInfo) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := copyTree(from+"/"+name.Name(), to+"/"+name.Name()); err != nil {
			return err
		}
	}
	if err := os.Chtimes(to, info.ModTime(), info.ModTime()); err != nil {
		return err
	}
	return os.Chmod(to, info.Mode())
}

func copyFile(from, to string, info os.FileInfo) error {
	source, err := os.OpenFile(from, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(copied, source); err == nil {
		err = copied.Chmod(info.Mode())
	}
	if closeErr := copied.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}
