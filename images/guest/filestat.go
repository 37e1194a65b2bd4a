package main

import (
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"
)

// fileView is a File on the wire.
type fileView struct {
	Path       string  `json:"path"`
	PathB64    string  `json:"path_b64,omitempty"`
	Name       string  `json:"name"`
	NameB64    string  `json:"name_b64,omitempty"`
	Type       string  `json:"type"`
	Size       int64   `json:"size"`
	Mode       uint32  `json:"mode"`
	User       string  `json:"user"`
	Group      string  `json:"group"`
	ModifiedAt float64 `json:"modified_at"`
	Target     *string `json:"target,omitempty"`
	AfterB64   string  `json:"after_b64,omitempty"`
}

// owners remembers names of ids for the length of one answer.
type owners struct {
	passwd, group []byte
	users, groups map[uint32]string
}

func newOwners() *owners {
	return &owners{
		passwd: readBounded(passwdPath, largestAccount), group: readBounded(groupPath, largestAccount),
		users: map[uint32]string{}, groups: map[uint32]string{},
	}
}

func nameIn(known map[uint32]string, id uint32, data []byte) string {
	name, ok := known[id]
	if !ok {
		name = nameOfID(id, data)
		known[id] = name
	}
	return name
}

func typeOf(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "directory"
	case syscall.S_IFLNK:
		return "link"
	}
	return "other"
}

func (o *owners) view(p string, st *syscall.Stat_t) *fileView {
	name := path.Base(p)
	v := &fileView{
		Path: strings.ToValidUTF8(p, "\uFFFD"), Name: strings.ToValidUTF8(name, "\uFFFD"),
		Type: typeOf(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777,
		User: nameIn(o.users, st.Uid, o.passwd), Group: nameIn(o.groups, st.Gid, o.group),
		ModifiedAt: float64(st.Mtim.Sec) + float64(st.Mtim.Nsec)/1e9,
	}
	if !utf8.ValidString(p) {
		v.PathB64 = base64.StdEncoding.EncodeToString([]byte(p))
	}
	if !utf8.ValidString(name) {
		v.NameB64 = base64.StdEncoding.EncodeToString([]byte(name))
	}
	if v.Type == "link" {
		if target, err := os.Readlink(p); err == nil {
			target = strings.ToValidUTF8(target, "\uFFFD")
			v.Target = &target
		}
	}
	return v
}

// lookAt is the File at p; of the link itself without follow.
func lookAt(who account, p string, follow bool) (view *fileView, err error) {
	err = as(who, func() error {
		var st syscall.Stat_t
		look := syscall.Stat
		if !follow {
			look = syscall.Lstat
		}
		if err := look(p, &st); err != nil {
			return &os.PathError{Op: "stat", Path: p, Err: err}
		}
		view = newOwners().view(p, &st)
		return nil
	})
	return view, err
}

// walker goes through a directory, and with recursive through all below it, without following links.
// It reads a batch at a time, so that nothing is held while an answer is sent.
type walker struct {
	who       account
	recursive bool
	strict    bool     // what cannot be looked into is an error, unless it is gone
	todo      []string // directories not begun
	dir       string
	open      *os.File
}

// entry is one file as the walker met it.
type entry struct {
	path string
	stat syscall.Stat_t
}

const walkBatch = 512

func startWalk(who account, dir string, recursive bool) (*walker, error) {
	w := &walker{who: who, recursive: recursive}
	err := as(who, func() (err error) { return w.enter(dir) })
	return w, err
}

func (w *walker) enter(dir string) (err error) {
	w.open, err = os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	w.dir = dir
	return err
}

// next returns some entries; none at the end. A directory below the first that vanished is passed
// over, and unless strict one that may not be read.
func (w *walker) next() (batch []entry, err error) {
	err = as(w.who, func() error {
		for len(batch) == 0 {
			if w.open == nil {
				if len(w.todo) == 0 {
					return nil
				}
				dir := w.todo[len(w.todo)-1]
				w.todo = w.todo[:len(w.todo)-1]
				if err := w.enter(dir); err != nil {
					if w.strict && !isGone(err) {
						return err
					}
					continue
				}
			}
			names, err := w.open.Readdirnames(walkBatch)
			if len(names) == 0 {
				w.close()
				if w.strict && err != io.EOF {
					return err
				}
				continue
			}
			if batch, err = w.look(names); err != nil {
				return err
			}
		}
		return nil
	})
	return batch, err
}

func (w *walker) look(names []string) ([]entry, error) {
	batch := make([]entry, 0, len(names))
	for _, name := range names {
		found := entry{path: strings.TrimRight(w.dir, "/") + "/" + name}
		if err := syscall.Lstat(found.path, &found.stat); err != nil {
			if w.strict && err != syscall.ENOENT {
				return nil, &os.PathError{Op: "stat", Path: found.path, Err: err}
			}
			continue // gone since
		}
		batch = append(batch, found)
		if w.recursive && found.stat.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			w.todo = append(w.todo, found.path)
		}
	}
	return batch, nil
}

// isGone tells what vanished, or became something else, from what is there and refuses.
func isGone(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

func (w *walker) close() {
	if w.open != nil {
		w.open.Close()
		w.open = nil
	}
}
