package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// archiveCount is the answer to an archive that was unpacked.
type archiveCount struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (g *guest) putArchive(w http.ResponseWriter, r *http.Request) error {
	c, err := g.fileCallOf(queryOf(r))
	if err != nil {
		return err
	}
	var body io.Reader = &bodyReader{r.Body}
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return badArchive(err)
		}
		body = unzipped
	default:
		return fail("bad_request", "Content-Encoding %q is not known", encoding)
	}
	count, err := unpack(c, body)
	if err != nil {
		return err
	}
	writeJSON(w, 200, count)
	return nil
}

func badArchive(err error) error {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	return fail("bad_request", "the archive is not valid: %v", err)
}

// unpack writes the members of a tar below c.path, which is made if it is missing. Each member is
// checked before anything of it is written.
func unpack(c fileCall, from io.Reader) (count archiveCount, err error) {
	var target *beneath
	err = as(c.who, func() (err error) {
		if err = makeDirs(strings.TrimRight(c.path, "/")+"/", defaultDirMode); err == nil {
			target, err = openBeneath(c.path)
		}
		return err
	})
	if err != nil {
		return count, err
	}
	defer target.close()
	defer func() {
		if lateErr := as(c.who, target.closeDirectories); err == nil {
			err = lateErr
		}
	}()
	archive := tar.NewReader(from)
	for {
		head, err := archive.Next()
		if err == io.EOF {
			return count, nil
		}
		if err != nil {
			return count, badArchive(err)
		}
		n, err := target.member(c.who, head, archive)
		if err != nil {
			return count, err
		}
		count.Bytes += n
		if head.Typeflag != tar.TypeDir && head.Typeflag != tar.TypeXGlobalHeader {
			count.Files++
		}
	}
}

// member writes one member and returns the bytes of its content.
func (b *beneath) member(who account, head *tar.Header, content io.Reader) (n int64, err error) {
	name, ok := parts(head.Name)
	if !ok {
		return 0, leads(head.Name)
	}
	switch head.Typeflag {
	case tar.TypeXGlobalHeader:
		return 0, nil
	case tar.TypeDir:
		return 0, as(who, func() error { return b.directory(name, head) })
	}
	if len(name) == 0 {
		return 0, leads(head.Name)
	}
	switch head.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		return b.regular(who, name, head, content)
	case tar.TypeSymlink:
		if _, ok := b.through(name[:len(name)-1], head.Linkname); !ok || head.Linkname == "" {
			return 0, leads(head.Name)
		}
		return 0, as(who, func() error { return b.link(name, head.Linkname) })
	case tar.TypeLink:
		target, ok := parts(head.Linkname)
		if !ok || len(target) == 0 {
			return 0, leads(head.Name)
		}
		return 0, as(who, func() error { return b.hardLink(name, target) })
	}
	return 0, fail("bad_request", "the member %q is neither file, directory nor link", head.Name)
}

func (b *beneath) directory(name []string, head *tar.Header) error {
	if len(name) == 0 {
		return nil // the target itself
	}
	dir, base, err := b.parent(name, true)
	if err != nil {
		return err
	}
	defer syscall.Close(dir)
	mode := b.openMode(name, uint32(head.Mode)&0o777)
	if err := mkdirAt(dir, base, mode); err != nil && err != syscall.EEXIST {
		return &os.PathError{Op: "mkdir", Path: head.Name, Err: err}
	}
	// There already, perhaps as a link: then it must lead to a directory inside.
	return b.setDirMode(name, mode)
}

// openMode is the mode that a directory has while the archive is unpacked: its user must be able to
// fill it. One that forbids that is remembered, and set at the end.
func (b *beneath) openMode(name []string, mode uint32) uint32 {
	key := strings.Join(name, "/")
	delete(b.late, key)
	if mode&0o700 == 0o700 || len(b.late) >= mostLate {
		return mode
	}
	if b.late == nil {
		b.late = map[string]uint32{}
	}
	b.late[key] = mode
	return mode | 0o700
}

// closeDirectories sets what openMode remembered, the deepest first.
func (b *beneath) closeDirectories() error {
	names := make([]string, 0, len(b.late))
	for name := range b.late {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
	for _, name := range names {
		if err := b.setDirMode(strings.Split(name, "/"), b.late[name]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (b *beneath) setDirMode(name []string, mode uint32) error {
	fd, _, err := b.parent(append(name[:len(name):len(name)], "."), false)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Fchmod(fd, mode)
}

// regular writes beside the member's place and moves it there whole: an archive that breaks off in the
// middle of a member leaves what was there before.
func (b *beneath) regular(who account, name []string, head *tar.Header, content io.Reader) (int64, error) {
	var file *os.File
	dir, base, temp := -1, "", tempPrefix+randomID()
	err := as(who, func() (err error) {
		if dir, base, err = b.parent(name, true); err != nil {
			return err
		}
		fd, err := syscall.Openat(dir, temp, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			syscall.Close(dir)
			return &os.PathError{Op: "open", Path: head.Name, Err: err}
		}
		file = os.NewFile(uintptr(fd), head.Name)
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer syscall.Close(dir)
	n, err := fill(file, head, content)
	return n, as(who, func() error {
		if err == nil {
			if err = syscall.Renameat(dir, temp, dir, base); err != nil {
				err = &os.PathError{Op: "open", Path: head.Name, Err: err}
			}
		}
		if err != nil {
			_ = removeAt(dir, temp)
		}
		return err
	})
}

// fill writes a member's content, mode and time, and closes the file.
func fill(file *os.File, head *tar.Header, content io.Reader) (int64, error) {
	counted := &countingReader{from: content}
	err := (&newFile{file: file}).copy(counted)
	err = errors.Join(err, syscall.Fchmod(int(file.Fd()), uint32(head.Mode)&0o777))
	setModified(int(file.Fd()), head.ModTime)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = badArchive(err)
	}
	return counted.n, err
}

type countingReader struct {
	from io.Reader
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	if err == io.ErrUnexpectedEOF { // copy takes that for a short last read
		err = badArchive(err)
	}
	return n, err
}

func setModified(fd int, at time.Time) {
	if at.IsZero() || at.Unix() < 0 {
		return
	}
	times := [2]syscall.Timespec{syscall.NsecToTimespec(at.UnixNano()), syscall.NsecToTimespec(at.UnixNano())}
	_, _, _ = syscall.Syscall6(sysUtimensat, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
}

func (b *beneath) link(name []string, target string) error {
	dir, base, err := b.parent(name, true)
	if err != nil {
		return err
	}
	defer syscall.Close(dir)
	return replaceAt(dir, base, func(temp string) error { return symlinkAt(target, dir, temp) })
}

func (b *beneath) hardLink(name, target []string) error {
	fromDir, from, err := b.parent(target, false)
	if err != nil {
		return err
	}
	defer syscall.Close(fromDir)
	toDir, to, err := b.parent(name, true)
	if err != nil {
		return err
	}
	defer syscall.Close(toDir)
	return replaceAt(toDir, to, func(temp string) error { return linkAt(fromDir, from, toDir, temp) })
}

// replaceAt makes something beside its place and moves it there, so that what is replaced may be what
// it is made of.
func replaceAt(dir int, base string, make func(temp string) error) error {
	temp := tempPrefix + randomID()
	err := make(temp)
	if err == nil {
		err = syscall.Renameat(dir, temp, dir, base)
		_ = removeAt(dir, temp) // still there if both were one file already
	}
	if err != nil {
		return &os.PathError{Op: "link", Path: base, Err: err}
	}
	return nil
}
