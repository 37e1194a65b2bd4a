package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// fileCall is what a query says of a file: who asks, and where it is.
type fileCall struct {
	who  account
	path string
}

func (g *guest) fileCallOf(q *query) (fileCall, error) {
	settings := g.settings()
	c := fileCall{path: settings.absolute(q.path("path"))}
	user := q.text("user")
	if q.failed != nil {
		return c, q.failed
	}
	who, p := settings.account(user)
	if p != nil {
		return c, p
	}
	c.who = who
	return c, nil
}

// openForReading opens a regular file. It never waits: not for the other end of a FIFO, nor a device.
func openForReading(c fileCall) (file *os.File, size int64, err error) {
	err = as(c.who, func() error {
		var st syscall.Stat_t
		if err := syscall.Stat(c.path, &st); err != nil {
			return &os.PathError{Op: "open", Path: c.path, Err: err}
		}
		if err := regular(c.path, &st); err != nil { // before it is opened: that alone can have effects
			return err
		}
		fd, err := syscall.Open(c.path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: c.path, Err: err}
		}
		if err = syscall.Fstat(fd, &st); err == nil {
			err = regular(c.path, &st)
		}
		if err != nil {
			syscall.Close(fd)
			return err
		}
		_ = syscall.SetNonblock(fd, false)
		file, size = os.NewFile(uintptr(fd), c.path), st.Size
		return nil
	})
	return file, size, err
}

func regular(p string, st *syscall.Stat_t) error {
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return nil
	case syscall.S_IFDIR:
		return fail("file_is_directory", "%s is a directory", p)
	}
	return notRegular(p)
}

// mostUnsized bounds what is read of a file that has no size though it has content, as in /proc.
const mostUnsized = 4 << 20

func (g *guest) getFile(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	offset, limit := q.number("offset", 0), q.number("limit", 1<<62)
	c, err := g.fileCallOf(q)
	if err != nil {
		return err
	}
	file, size, err := openForReading(c)
	if err != nil {
		return err
	}
	defer file.Close()
	var unsized []byte
	if size == 0 {
		if unsized, err = io.ReadAll(io.LimitReader(file, mostUnsized)); err != nil {
			// Some of /proc can be opened and not read: that is the file's nature, and no fault of ours.
			return fail("file_forbidden", "%s cannot be read: %v", c.path, err)
		}
		size = int64(len(unsized))
	}
	if offset > size {
		return fail("range", "the file has %d bytes", size).with("size", size)
	}
	length := min(limit, size-offset)
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	h.Set("X-File-Size", strconv.FormatInt(size, 10))
	if unsized != nil {
		_, _ = w.Write(unsized[offset : offset+length])
		return nil
	}
	sendFile(w, file, offset, length)
	return nil
}

// sendFile sends length bytes. If the file became shorter the connection is cut: never a whole answer
// with bytes missing.
func sendFile(w io.Writer, file *os.File, offset, length int64) {
	buffer := make([]byte, min(copyBytes, max(length, 1)))
	for length > 0 {
		n, _ := readAt(file, buffer[:min(int64(len(buffer)), length)], offset)
		if n == 0 {
			panic(http.ErrAbortHandler)
		}
		if _, err := w.Write(buffer[:n]); err != nil {
			panic(http.ErrAbortHandler)
		}
		offset += int64(n)
		length -= int64(n)
	}
}

func readAt(file *os.File, buffer []byte, offset int64) (int, error) {
	fileSlots <- struct{}{}
	defer func() { <-fileSlots }()
	return file.ReadAt(buffer, offset)
}

func (g *guest) putFile(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	mode := q.mode("mode")
	c, err := g.fileCallOf(q)
	if err != nil {
		return err
	}
	n, err := createBeside(c.who, c.path, mode)
	if err != nil {
		return err
	}
	if err := n.copy(&bodyReader{r.Body}); err != nil {
		n.discard()
		return err
	}
	if err := n.commit(); err != nil {
		return err
	}
	view, err := lookAt(c.who, n.target, true)
	if err != nil {
		return err
	}
	writeJSON(w, map[bool]int{true: 200, false: 201}[n.replaced], view)
	return nil
}

// bodyReader tells a body that broke off from one that ended.
type bodyReader struct{ body io.Reader }

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && err != io.EOF {
		err = fail("bad_request", "the body broke off: %v", err)
	}
	return n, err
}

func (g *guest) deleteFile(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	recursive := q.flag("recursive", false)
	c, err := g.fileCallOf(q)
	if err != nil {
		return err
	}
	err = as(c.who, func() error {
		var st syscall.Stat_t
		if err := syscall.Lstat(c.path, &st); err != nil {
			return &os.PathError{Op: "remove", Path: c.path, Err: err}
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			return os.Remove(c.path)
		}
		if recursive {
			return os.RemoveAll(c.path)
		}
		if err := syscall.Rmdir(c.path); err != nil {
			return &os.PathError{Op: "remove", Path: c.path, Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.WriteHeader(204)
	return nil
}

func (g *guest) statFile(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	follow := q.flag("follow", true)
	c, err := g.fileCallOf(q)
	if err != nil {
		return err
	}
	view, err := lookAt(c.who, c.path, follow)
	if err != nil {
		return err
	}
	writeJSON(w, 200, view)
	return nil
}

func (g *guest) listFiles(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	recursive := q.flag("recursive", false)
	limit := q.number("limit", 0)
	if limit > mostPage {
		q.refuse("limit")
	}
	after := ""
	if q.has("after_b64") {
		after = q.path("after")
	}
	c, err := g.fileCallOf(q)
	if err != nil {
		return err
	}
	if limit > 0 {
		return g.listFilePage(w, c, after, recursive, int(limit))
	}
	walk, err := startWalk(c.who, c.path, recursive)
	if err != nil {
		return err
	}
	defer walk.close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	names := newOwners()
	for {
		batch, err := walk.next()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if len(batch) == 0 {
			break
		}
		for i := range batch {
			if lines.Encode(names.view(batch[i].path, &batch[i].stat)) != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}
	_ = out.Flush()
	return nil
}

// listFilePage answers with a page; each File has `after`, with which the list goes on behind it.
func (g *guest) listFilePage(w http.ResponseWriter, c fileCall, after string, recursive bool, limit int) error {
	found, err := listPage(c.who, c.path, after, recursive, limit)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	names := newOwners()
	skip := len(strings.TrimRight(c.path, "/")) + 1
	for i := range found {
		view := names.view(found[i].path, &found[i].stat)
		view.AfterB64 = base64.StdEncoding.EncodeToString([]byte(found[i].path[skip:]))
		if lines.Encode(view) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	_ = out.Flush()
	return nil
}

// pathOf takes a path, or its bytes where it is not UTF-8.
func pathOf(name, text, encoded string) (string, *problem) {
	if encoded != "" {
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return "", fail("bad_request", "%s_b64 is not valid", name)
		}
		text = string(raw)
	}
	if text == "" || hasNUL(text) {
		return "", fail("bad_request", "%s is not valid", name)
	}
	return text, nil
}

func (g *guest) makeDirectory(w http.ResponseWriter, r *http.Request) error {
	request := struct {
		Path    string  `json:"path"`
		PathB64 string  `json:"path_b64"`
		Mode    *uint32 `json:"mode"`
		Parents bool    `json:"parents"`
		User    string  `json:"user"`
	}{}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	p, bad := pathOf("path", request.Path, request.PathB64)
	if bad != nil {
		return bad
	}
	settings := g.settings()
	who, bad := settings.account(request.User)
	if bad != nil {
		return bad
	}
	p = settings.absolute(p)
	mode := uint32(defaultDirMode)
	if request.Mode != nil {
		mode = *request.Mode & 0o7777
	}
	err := as(who, func() error {
		if request.Parents {
			return makeDirs(p, mode)
		}
		if err := syscall.Mkdir(p, mode); err != nil {
			return &os.PathError{Op: "mkdir", Path: p, Err: err}
		}
		return syscall.Chmod(p, mode)
	})
	if err != nil {
		return err
	}
	view, err := lookAt(who, p, true)
	if err != nil {
		return err
	}
	writeJSON(w, 200, view)
	return nil
}

func (g *guest) moveFile(w http.ResponseWriter, r *http.Request) error {
	request := struct {
		From      string `json:"from"`
		FromB64   string `json:"from_b64"`
		To        string `json:"to"`
		ToB64     string `json:"to_b64"`
		User      string `json:"user"`
		Overwrite bool   `json:"overwrite"`
	}{}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	from, bad := pathOf("from", request.From, request.FromB64)
	if bad != nil {
		return bad
	}
	to, bad := pathOf("to", request.To, request.ToB64)
	if bad != nil {
		return bad
	}
	settings := g.settings()
	who, bad := settings.account(request.User)
	if bad != nil {
		return bad
	}
	from, to = settings.absolute(from), settings.absolute(to)
	if err := as(who, func() error { return move(from, to, request.Overwrite) }); err != nil {
		return err
	}
	view, err := lookAt(who, to, false)
	if err != nil {
		return err
	}
	writeJSON(w, 200, view)
	return nil
}
