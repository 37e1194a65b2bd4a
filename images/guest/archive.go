package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
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
	case tar.TypeReg, '\x00':
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
	mode := uint32(head.Mode) & 0o777
	if err := mkdirAt(dir, base, mode); err != nil && err != syscall.EEXIST {
		return &os.PathError{Op: "mkdir", Path: head.Name, Err: err}
	}
	// There already, perhaps as a link: then it must lead to a directory inside.
	fd, _, err := b.parent(append(name[:len(name):len(name)], "."), false)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Fchmod(fd, mode)
}

func (b *beneath) regular(who account, name []string, head *tar.Header, content io.Reader) (int64, error) {
	var file *os.File
	err := as(who, func() error {
		dir, base, err := b.parent(name, true)
		if err != nil {
			return err
		}
		defer syscall.Close(dir)
		if err := removeAt(dir, base); err != nil {
			return &os.PathError{Op: "open", Path: head.Name, Err: err}
		}
		fd, err := syscall.Openat(dir, base, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return &os.PathError{Op: "open", Path: head.Name, Err: err}
		}
		file = os.NewFile(uintptr(fd), head.Name)
		return nil
	})
	if err != nil {
		return 0, err
	}
	n := &newFile{file: file}
	counted := &countingReader{from: content}
	err = n.copy(counted)
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
	if err = removeAt(dir, base); err == nil {
		err = symlinkAt(target, dir, base)
	}
	if err != nil {
		return &os.PathError{Op: "symlink", Path: base, Err: err}
	}
	return nil
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
	if err = removeAt(toDir, to); err == nil {
		err = linkAt(fromDir, from, toDir, to)
	}
	if err != nil {
		return &os.PathError{Op: "link", Path: to, Err: err}
	}
	return nil
}

func (g *guest) getArchive(w http.ResponseWriter, r *http.Request) error {
	c, err := g.fileCallOf(queryOf(r))
	if err != nil {
		return err
	}
	var st syscall.Stat_t
	err = as(c.who, func() error {
		if err := syscall.Stat(c.path, &st); err != nil {
			return &os.PathError{Op: "open", Path: c.path, Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	pack := &packer{who: c.who, owners: newOwners()}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		file, _, err := openForReading(c)
		if err != nil {
			return err
		}
		file.Close()
		pack.begin(w)
		pack.add(entry{path: c.path, stat: st}, path.Base(c.path))
		pack.end()
		return nil
	}
	walk, err := startWalk(c.who, c.path, true)
	if err != nil {
		return err
	}
	defer walk.close()
	pack.begin(w)
	root := strings.TrimRight(c.path, "/") + "/"
	for {
		batch, err := walk.next()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if len(batch) == 0 {
			pack.end()
			return nil
		}
		for _, found := range batch {
			pack.add(found, strings.TrimPrefix(found.path, root))
		}
	}
}

// packer writes a tar to an answer. What cannot go on cuts the connection: never a whole answer with
// something missing.
type packer struct {
	who    account
	owners *owners
	tar    *tar.Writer
}

func (p *packer) begin(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-tar")
	p.tar = tar.NewWriter(w)
}

func (p *packer) end() {
	if p.tar.Close() != nil {
		panic(http.ErrAbortHandler)
	}
}

// add adds a file, directory or link; sockets, FIFOs and devices are left out.
func (p *packer) add(found entry, name string) {
	st := &found.stat
	head := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		Uname:   nameIn(p.owners.users, st.Uid, p.owners.passwd),
		Gname:   nameIn(p.owners.groups, st.Gid, p.owners.group),
		ModTime: time.Unix(st.Mtim.Sec, 0), Format: tar.FormatPAX,
	}
	var file *os.File
	switch typeOf(st.Mode) {
	case "directory":
		head.Typeflag, head.Name = tar.TypeDir, name+"/"
	case "link":
		target, err := os.Readlink(found.path)
		if err != nil {
			return // gone since
		}
		head.Typeflag, head.Linkname = tar.TypeSymlink, target
	case "file":
		var size int64
		var err error
		file, size, err = openForReading(fileCall{p.who, found.path})
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer file.Close()
		head.Typeflag, head.Size = tar.TypeReg, size
	default:
		return
	}
	if p.tar.WriteHeader(head) != nil {
		panic(http.ErrAbortHandler)
	}
	if file != nil {
		sendFile(p.tar, file, 0, head.Size)
	}
}
