package main

import (
	"archive/tar"
	"errors"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

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
	if err := canPack(c); err != nil {
		return err
	}
	walk, err := startStrictWalk(c)
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

// canPack tells what keeps a tree from being packed, by its name, before anything of it is sent.
func canPack(c fileCall) error {
	walk, err := startStrictWalk(c)
	if err != nil {
		return err
	}
	defer walk.close()
	for {
		batch, err := walk.next()
		if err != nil || len(batch) == 0 {
			return err
		}
		err = as(c.who, func() error {
			for i := range batch {
				if err := canRead(&batch[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

func startStrictWalk(c fileCall) (*walker, error) {
	walk, err := startWalk(c.who, c.path, true)
	walk.strict = true
	return walk, err
}

func canRead(found *entry) error {
	if found.stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil
	}
	fd, err := syscall.Open(found.path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	switch err {
	case nil:
		return syscall.Close(fd)
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
		return nil // gone since, or something else
	}
	return &os.PathError{Op: "open", Path: found.path, Err: err}
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
	// Sent before anything can fail: to cut a connection without an answer looks like a broken line.
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
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
