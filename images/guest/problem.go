package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// problem is an error with a code of the protocol's closed set.
type problem struct {
	Code    string         `json:"code"`
	Detail  string         `json:"detail"`
	Details map[string]any `json:"details,omitempty"`
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

var statusOf = map[string]int{
	"bad_request":        422,
	"unauthenticated":    401,
	"not_found":          404,
	"conflict":           409,
	"gone":               410,
	"too_large":          413,
	"range":              416,
	"file_not_found":     404,
	"file_is_directory":  409,
	"file_not_directory": 409,
	"file_exists":        409,
	"file_forbidden":     403,
	"name_too_long":      422,
	"disk_full":          507,
	"busy":               503,
	"internal":           500,
}

func fail(code, format string, args ...any) *problem {
	return &problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func (p *problem) with(key string, value any) *problem {
	if p.Details == nil {
		p.Details = map[string]any{}
	}
	p.Details[key] = value
	return p
}

// blame marks what is the doing of the sandbox's own code, and not of who asks.
func (p *problem) blame(inside bool) *problem {
	if inside {
		return p.with("from_inside", true)
	}
	return p
}

// asProblem gives any error a code. What is no problem and no errno is ours: internal.
func asProblem(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fail("too_large", "the body is longer than %d bytes", tooLarge.Limit)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		p := fileProblem(errno, err.Error())
		if errno == syscall.ENAMETOOLONG && !isTooLong(err) {
			p = fail("file_not_found", "%s", err.Error()).with("errno", "ENAMETOOLONG") // a link names it
		}
		if errno == syscall.EAGAIN {
			p.blame(true) // a file that a process inside holds by a lease
		}
		if errno == syscall.ENOSPC && !inOwnMemory(err) {
			p.with("host_short", true)
		}
		return p
	}
	return fail("internal", "%v", err)
}

// isTooLong says whether the path itself is what the kernel found too long, and not where a link in it leads.
func isTooLong(err error) bool {
	var at *os.PathError
	if !errors.As(err, &at) || len(at.Path) >= syscall.PathMax {
		return true
	}
	for _, name := range strings.Split(at.Path, "/") {
		if len(name) > 255 {
			return true
		}
	}
	return false
}

// fileProblem is what an errno of a file call means to the caller.
func fileProblem(errno syscall.Errno, detail string) *problem {
	code := "internal"
	switch errno {
	case syscall.ENOENT, syscall.ELOOP:
		code = "file_not_found"
	case syscall.EISDIR, syscall.ENOTEMPTY:
		code = "file_is_directory"
	case syscall.ENOTDIR:
		code = "file_not_directory"
	case syscall.EEXIST:
		code = "file_exists"
	case syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EBUSY, syscall.ETXTBSY, syscall.ENXIO, syscall.ENODEV, syscall.EXDEV:
		code = "file_forbidden"
	case syscall.ENAMETOOLONG:
		code = "name_too_long"
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		code = "disk_full"
	case syscall.EINVAL, syscall.EILSEQ:
		code = "bad_request"
	case syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
		code = "busy"
	}
	p := fail(code, "%s", detail)
	if errno == syscall.ELOOP {
		p.with("errno", "ELOOP")
	}
	return p
}

func writeProblem(w http.ResponseWriter, err error) {
	p := asProblem(err)
	writeJSON(w, statusOf[p.Code], p)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		status, data = 500, []byte(`{"code":"internal","detail":"the answer cannot be written"}`)
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

var jsonType = []string{"application/json"}
