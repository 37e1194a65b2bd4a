package main

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const largestJSON = 24 << 20

// readJSON reads a body into v. An unknown field is refused with its name: it would be a wish that
// is silently not granted.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	if r.ContentLength > largestJSON {
		return &http.MaxBytesError{Limit: largestJSON}
	}
	return decodeJSON(http.MaxBytesReader(w, r.Body, largestJSON), v)
}

func decodeJSON(body io.Reader, v any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		if p := asProblem(err); p.Code == "too_large" {
			return p
		}
		return fail("bad_request", "the body is not valid: %v", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fail("bad_request", "the body goes on after its end")
	}
	return nil
}

func appendJSON(frames []byte, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return frames
	}
	return appendFrame(frames, frameJSON, data)
}

// validID is [A-Za-z0-9._:@-]{1,128}.
func validID(id string) bool {
	if len(id) == 0 || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == ':', c == '@', c == '-':
		default:
			return false
		}
	}
	return true
}

func hasNUL(text string) bool { return strings.IndexByte(text, 0) >= 0 }

// query reads a query string; the first mistake is kept in failed.
type query struct {
	values url.Values
	failed *problem
}

func queryOf(r *http.Request) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.failed = fail("bad_request", "the query string is not valid")
	}
	return q
}

func (q *query) has(name string) bool { return q.values.Get(name) != "" }

func (q *query) text(name string) string {
	value := q.values.Get(name)
	if hasNUL(value) {
		q.refuse(name)
	}
	return value
}

func (q *query) refuse(name string) {
	if q.failed == nil {
		q.failed = fail("bad_request", "%s is not valid", name)
	}
}

// number is a count from 0; otherwise where it is not given.
func (q *query) number(name string, otherwise int64) int64 {
	if !q.has(name) {
		return otherwise
	}
	value, err := strconv.ParseInt(q.values.Get(name), 10, 64)
	if err != nil || value < 0 {
		q.refuse(name)
		return otherwise
	}
	return value
}

// flag is "0" or "1".
func (q *query) flag(name string, otherwise bool) bool {
	switch q.values.Get(name) {
	case "":
		return otherwise
	case "0":
		return false
	case "1":
		return true
	}
	q.refuse(name)
	return otherwise
}

// seconds is a duration; 0 where it is not given.
func (q *query) seconds(name string) float64 {
	if !q.has(name) {
		return 0
	}
	value, err := strconv.ParseFloat(q.values.Get(name), 64)
	if err != nil || !(value >= 0) {
		q.refuse(name)
		return 0
	}
	return value
}

// mode is octal digits, as chmod takes them.
func (q *query) mode(name string) *uint32 {
	if !q.has(name) {
		return nil
	}
	value, err := strconv.ParseUint(strings.TrimPrefix(q.values.Get(name), "0o"), 8, 32)
	if err != nil || value > 0o7777 {
		q.refuse(name)
		return nil
	}
	mode := uint32(value)
	return &mode
}

// path is name=, or name_b64= where the path is not UTF-8.
func (q *query) path(name string) string {
	if encoded := q.values.Get(name + "_b64"); encoded != "" {
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || hasNUL(string(raw)) {
			q.refuse(name + "_b64")
		}
		return string(raw)
	}
	value := q.text(name)
	if value == "" {
		q.refuse(name)
	}
	return value
}
