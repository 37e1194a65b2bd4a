package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
)

func at(path string) string { return "?path=" + url.QueryEscape(path) }

func (g *testGuest) put(path string, data []byte, query string) answer {
	g.t.Helper()
	return g.send("PUT", "/v1/files"+at(path)+query, bytes.NewReader(data))
}

func (g *testGuest) get(path, query string) answer {
	g.t.Helper()
	return g.send("GET", "/v1/files"+at(path)+query, nil)
}

// openDir is a directory that any user may enter.
func openDir(t *testing.T) string {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	return dir
}

func TestFilesOfAllSizesGoInAndOutExactly(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	random := rand.New(rand.NewSource(3))
	for _, size := range []int{0, 1, 98303, 98304, 98305, 131071, 131072, 131073, 1 << 20, 30 << 20} {
		data := make([]byte, size)
		random.Read(data)
		path := filepath.Join(dir, "a/b", fmt.Sprint(size))
		if a := g.put(path, data, "&mode=751"); a.status != 201 || int(a.json(t)["size"].(float64)) != size || a.json(t)["mode"] != float64(0o751) {
			t.Fatalf("%d %s", a.status, a.body)
		}
		a := g.get(path, "")
		if !bytes.Equal(a.body, data) || a.header.Get("X-File-Size") != fmt.Sprint(size) {
			t.Fatalf("%d bytes: %d came back", size, len(a.body))
		}
		if r := g.run([]string{"sha256sum", path}); !strings.HasPrefix(string(r.Stdout.Head), digest(data)) {
			t.Fatalf("%s", r.Stdout.Head)
		}
		if size > 100 {
			if a := g.get(path, "&offset=50&limit=30"); !bytes.Equal(a.body, data[50:80]) {
				t.Fatal("a part differs")
			}
			if a := g.put(path, data[:10], ""); a.status != 200 || a.json(t)["mode"] != float64(0o751) {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
	}
	if a := g.get(filepath.Join(dir, "a/b/1"), "&offset=2"); a.code(t) != "416 range" {
		t.Fatalf("%s", a.body)
	}
}

func TestFileFaultsAreTyped(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.WriteFile(dir+"/closed", []byte("x"), 0o600))
	must(t, os.Chmod(dir+"/closed", 0))
	must(t, os.Symlink("loop2", dir+"/loop1"))
	must(t, os.Symlink("loop1", dir+"/loop2"))
	must(t, syscall.Mkfifo(dir+"/fifo", 0o666))
	must(t, os.WriteFile(dir+"/plain", []byte("x"), 0o666))
	cases := map[string]string{
		dir + "/missing":                      "404 file_not_found",
		dir + "/no/such/parent":               "404 file_not_found",
		dir:                                   "409 file_is_directory",
		"/etc/passwd/x":                       "409 file_not_directory",
		dir + "/" + strings.Repeat("n", 5000): "422 name_too_long",
		dir + "/loop1":                        "404 file_not_found",
		dir + "/fifo":                         "403 file_forbidden",
		"/dev/zero":                           "403 file_forbidden",
		"/dev/tty":                            "403 file_forbidden",
		"relative/missing":                    "404 file_not_found",
	}
	for path, code := range cases {
		if a := g.get(path, ""); a.code(t) != code {
			t.Errorf("read %.40s: %s %s", path, a.code(t), a.body)
		}
	}
	user := ""
	if isRoot() {
		user = "&user=nobody"
	}
	if a := g.get(dir+"/closed", user); a.code(t) != "403 file_forbidden" {
		t.Errorf("closed: %s", a.body)
	}
	for path, code := range map[string]string{
		dir:                                   "409 file_is_directory",
		dir + "/new/":                         "409 file_is_directory",
		dir + "/plain/x":                      "409 file_not_directory",
		dir + "/" + strings.Repeat("n", 5000): "422 name_too_long",
		dir + "/loop1":                        "404 file_not_found",
		dir + "/fifo":                         "403 file_forbidden",
		"/dev/null":                           "403 file_forbidden",
	} {
		if a := g.put(path, []byte("x"), ""); a.code(t) != code {
			t.Errorf("write %.40s: %s %s", path, a.code(t), a.body)
		}
	}
	for _, query := range []string{"?path=a%00b", "?path=", "", "?path=a&offset=-1", "?path=a&user=no-such-user"} {
		if a := g.send("GET", "/v1/files"+query, nil); a.code(t) != "422 bad_request" {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	if a := g.put(dir+"/x", nil, "&mode=9"); a.code(t) != "422 bad_request" {
		t.Errorf("%s", a.body)
	}
}

func TestWriteGoesThroughLinksAndReplacesInOneStep(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.Mkdir(dir+"/real", 0o777))
	must(t, os.Symlink("real/target", dir+"/link"))
	must(t, os.Symlink(dir+"/link", dir+"/link2"))
	must(t, os.Symlink("real", dir+"/dir"))
	if a := g.put(dir+"/link2", []byte("one"), ""); a.status != 201 {
		t.Fatalf("%s", a.body)
	}
	if a := g.put(dir+"/dir/target", []byte("two"), ""); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	data, _ := os.ReadFile(dir + "/real/target")
	info, _ := os.Lstat(dir + "/link2")
	if string(data) != "two" || info.Mode()&os.ModeSymlink == 0 {
		t.Fatalf("%q %v", data, info.Mode())
	}
	if got := listNames(t, g, dir+"/real", ""); strings.Join(got, " ") != "target" {
		t.Fatalf("%v", got)
	}
}

func listNames(t *testing.T, g *testGuest, dir, query string) (names []string) {
	t.Helper()
	a := g.send("GET", "/v1/files/list"+at(dir)+query, nil)
	if a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	lines := json.NewDecoder(bytes.NewReader(a.body))
	for {
		var v fileView
		if err := lines.Decode(&v); err == io.EOF {
			sort.Strings(names)
			return names
		} else if err != nil {
			t.Fatal(err)
		}
		name := v.Name
		if v.NameB64 != "" {
			raw, _ := base64.StdEncoding.DecodeString(v.NameB64)
			name = string(raw)
		}
		names = append(names, name)
	}
}

func TestInterruptedBodyLeavesNothing(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	conn, err := net.Dial("unix", g.socket)
	must(t, err)
	fmt.Fprintf(conn, "PUT /v1/files%s HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\nstart", at(dir+"/f"))
	eventually(t, "it is being written", func() bool { return len(listNames(t, g, dir, "")) == 1 })
	conn.Close()
	eventually(t, "nothing is left", func() bool { return len(listNames(t, g, dir, "")) == 0 })
}

func TestStrangeNamesGoRoundExactly(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	names := []string{"a\nb", "-rf", "'", `"`, "$(touch PWN)", ";id", "*", "a b ", "~", "\u00e9", "e\u0301", "🎈", "bad\xff\xfe"}
	for _, name := range names {
		path := dir + "/" + name
		query := "?path_b64=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(path)))
		if a := g.send("PUT", "/v1/files"+query, strings.NewReader(name)); a.status != 201 {
			t.Fatalf("%q: %s", name, a.body)
		}
		if a := g.send("GET", "/v1/files"+query, nil); string(a.body) != name {
			t.Fatalf("%q: %q", name, a.body)
		}
		if a := g.send("GET", "/v1/files/stat"+query, nil); a.status != 200 {
			t.Fatalf("%q: %s", name, a.body)
		}
	}
	sort.Strings(names)
	if got := listNames(t, g, dir, ""); strings.Join(got, "|") != strings.Join(names, "|") {
		t.Fatalf("%q", got)
	}
	for _, name := range names {
		move := fields{"from_b64": base64.StdEncoding.EncodeToString([]byte(dir + "/" + name)), "to": dir + "/moved"}
		if a := g.post("/v1/files/move", move); a.status != 200 {
			t.Fatalf("%q: %s", name, a.body)
		}
		if a := g.send("DELETE", "/v1/files"+at(dir+"/moved"), nil); a.status != 204 {
			t.Fatalf("%q: %s", name, a.body)
		}
	}
	if got := listNames(t, g, dir, ""); len(got) != 0 {
		t.Fatalf("%q", got)
	}
}

func TestManyFilesAndDeepTreesAreListedWhole(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	deep := dir
	for i := range 200 {
		deep = filepath.Join(deep, "d")
		must(t, os.Mkdir(deep, 0o755))
		must(t, os.WriteFile(filepath.Join(deep, fmt.Sprint(i)), nil, 0o644))
	}
	many := dir + "/many"
	must(t, os.Mkdir(many, 0o755))
	for i := range 10_000 {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", many, i), nil, 0o644))
	}
	if n := len(listNames(t, g, many, "")); n != 10_000 {
		t.Fatalf("%d names", n)
	}
	if n := len(listNames(t, g, dir, "&recursive=1")); n != 10_401 {
		t.Fatalf("%d names", n)
	}
	if a := g.send("DELETE", "/v1/files"+at(dir+"/many"), nil); a.code(t) != "409 file_is_directory" {
		t.Fatalf("%s", a.body)
	}
	if a := g.send("DELETE", "/v1/files"+at(dir+"/many")+"&recursive=1", nil); a.status != 204 {
		t.Fatalf("%s", a.body)
	}
}

func TestMakeMoveAndDelete(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	if a := g.post("/v1/files/mkdir", fields{"path": dir + "/a/b", "mode": 0o750, "parents": true}); a.status != 200 || a.json(t)["mode"] != float64(0o750) {
		t.Fatalf("%s", a.body)
	}
	if a := g.post("/v1/files/mkdir", fields{"path": dir + "/a", "parents": true}); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if a := g.post("/v1/files/mkdir", fields{"path": dir + "/a"}); a.code(t) != "409 file_exists" {
		t.Fatalf("%s", a.body)
	}
	if a := g.post("/v1/files/mkdir", fields{"path": dir + "/x/y"}); a.code(t) != "404 file_not_found" {
		t.Fatalf("%s", a.body)
	}
	g.put(dir+"/f", []byte("f"), "")
	g.put(dir+"/g", []byte("g"), "")
	if a := g.post("/v1/files/move", fields{"from": dir + "/f", "to": dir + "/g"}); a.code(t) != "409 file_exists" {
		t.Fatalf("%s", a.body)
	}
	if a := g.post("/v1/files/move", fields{"from": dir + "/f", "to": dir + "/g", "overwrite": true}); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if a := g.get(dir+"/g", ""); string(a.body) != "f" {
		t.Fatalf("%q", a.body)
	}
	if a := g.post("/v1/files/move", fields{"from": dir + "/nope", "to": dir + "/h"}); a.code(t) != "404 file_not_found" {
		t.Fatalf("%s", a.body)
	}
	must(t, os.Symlink(dir+"/g", dir+"/l"))
	a := g.send("GET", "/v1/files/stat"+at(dir+"/l")+"&follow=0", nil).json(t)
	if a["type"] != "link" || a["target"] != dir+"/g" {
		t.Fatalf("%v", a)
	}
	if a := g.send("GET", "/v1/files/stat"+at(dir+"/l"), nil).json(t); a["type"] != "file" {
		t.Fatalf("%v", a)
	}
	if a := g.send("DELETE", "/v1/files"+at(dir+"/l"), nil); a.status != 204 {
		t.Fatalf("%s", a.body)
	}
	if _, err := os.Stat(dir + "/g"); err != nil {
		t.Fatal("the link's target went too")
	}
	if a := g.send("DELETE", "/v1/files"+at(dir+"/l"), nil); a.code(t) != "404 file_not_found" {
		t.Fatalf("%s", a.body)
	}
}

func TestMoveAcrossFileSystemsCopies(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "guest")
	if err != nil {
		t.Skip("no second file system to write to")
	}
	defer os.RemoveAll(shm)
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.MkdirAll(dir+"/tree/sub", 0o755))
	must(t, os.WriteFile(dir+"/tree/sub/f", []byte("data"), 0o751))
	must(t, os.Symlink("sub/f", dir+"/tree/l"))
	if a := g.post("/v1/files/move", fields{"from": dir + "/tree", "to": shm + "/tree"}); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	data, _ := os.ReadFile(shm + "/tree/l")
	info, err := os.Stat(shm + "/tree/sub/f")
	if string(data) != "data" || err != nil || info.Mode().Perm() != 0o751 {
		t.Fatalf("%q %v", data, err)
	}
	if _, err := os.Stat(dir + "/tree"); !os.IsNotExist(err) {
		t.Fatal("the source is still there")
	}
}

func TestFilesOfTheKernelHaveTheirContent(t *testing.T) {
	g := startGuest(t)
	if a := g.get("/proc/version", ""); !bytes.HasPrefix(a.body, []byte("Linux")) {
		t.Fatalf("%q", a.body)
	}
}

func TestFilesBelongToTheUserAndHisRightsHold(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root")
	}
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.Mkdir(dir+"/mine", 0o700))
	if a := g.put(dir+"/f", []byte("#!/bin/sh\necho ran\n"), "&user=nobody"); a.status != 201 || a.json(t)["user"] != "nobody" {
		t.Fatalf("%s", a.body)
	}
	if r := g.sh("echo '# more' >> f; chmod +x f; ./f", fields{"user": "nobody", "cwd": dir}); string(r.Stdout.Head) != "ran\n" {
		t.Fatalf("%q %q", r.Stdout.Head, r.Stderr.Head)
	}
	for _, a := range []answer{
		g.put(dir+"/mine/x", nil, "&user=nobody"),
		g.put("/etc/x-of-nobody", nil, "&user=nobody"),
		g.send("GET", "/v1/files/list"+at(dir+"/mine")+"&user=nobody", nil),
		g.send("DELETE", "/v1/files"+at("/etc/passwd")+"&user=nobody", nil),
		g.post("/v1/files/mkdir", fields{"path": "/etc/d-of-nobody", "user": "nobody"}),
		g.post("/v1/files/move", fields{"from": dir + "/f", "to": "/etc/f-of-nobody", "user": "nobody"}),
	} {
		if a.code(t) != "403 file_forbidden" {
			t.Errorf("%s", a.body)
		}
	}
	// The thread that acted as nobody is root again.
	for range 50 {
		if a := g.put(dir+"/mine/y", []byte("x"), ""); a.status >= 300 {
			t.Fatalf("%s", a.body)
		}
	}
}

// member is one entry of a test's tar.
type member struct {
	name, link string
	kind       byte
	data       string
	mode       int64
}

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, m := range members {
		if m.mode == 0 {
			m.mode = 0o644
		}
		must(t, w.WriteHeader(&tar.Header{Name: m.name, Linkname: m.link, Typeflag: m.kind, Mode: m.mode, Size: int64(len(m.data))}))
		_, err := w.Write([]byte(m.data))
		must(t, err)
	}
	must(t, w.Close())
	return buffer.Bytes()
}

func (g *testGuest) unpack(dir string, data []byte, encoding string) answer {
	g.t.Helper()
	request, err := http.NewRequest("PUT", "http://guest/v1/files/archive"+at(dir), bytes.NewReader(data))
	must(g.t, err)
	if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	return g.do(request)
}

func TestArchiveGoesInAndOut(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	data := tarOf(t,
		member{name: "d/", kind: tar.TypeDir, mode: 0o750},
		member{name: "d/f", kind: tar.TypeReg, data: "hello", mode: 0o755},
		member{name: "./deep/er/f", kind: tar.TypeReg, data: "x"},
		member{name: "l", link: "d", kind: tar.TypeSymlink},
		member{name: "l/through", kind: tar.TypeReg, data: "y"},
		member{name: "h", link: "d/f", kind: tar.TypeLink},
		member{name: "abs", link: dir + "/in/d/f", kind: tar.TypeSymlink},
	)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(data)
	z.Close()
	for encoding, body := range map[string][]byte{"": data, "gzip": zipped.Bytes()} {
		a := g.unpack(dir+"/in", body, encoding)
		if a.status != 200 || a.json(t)["files"] != 6.0 || a.json(t)["bytes"] != 7.0 {
			t.Fatalf("%s", a.body)
		}
	}
	for path, want := range map[string]string{"d/f": "hello", "d/through": "y", "h": "hello", "abs": "hello", "deep/er/f": "x"} {
		if got, _ := os.ReadFile(dir + "/in/" + path); string(got) != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	if info, _ := os.Stat(dir + "/in/d"); info.Mode().Perm() != 0o750 {
		t.Error(info.Mode())
	}
	out := g.send("GET", "/v1/files/archive"+at(dir+"/in"), nil)
	var names []string
	for r := tar.NewReader(bytes.NewReader(out.body)); ; {
		head, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		content, _ := io.ReadAll(r)
		names = append(names, head.Name+"="+string(content)+head.Linkname)
	}
	sort.Strings(names)
	want := "abs=" + dir + "/in/d/f d/= d/f=hello d/through=y deep/= deep/er/= deep/er/f=x h=hello l=d"
	if strings.Join(names, " ") != want {
		t.Fatalf("%v", names)
	}
	if a := g.send("GET", "/v1/files/archive"+at(dir+"/in/d/f"), nil); !bytes.Contains(a.body, []byte("hello")) {
		t.Fatal("a single file")
	}
	if a := g.send("GET", "/v1/files/archive"+at(dir+"/none"), nil); a.code(t) != "404 file_not_found" {
		t.Fatalf("%s", a.body)
	}
}

func TestMembersThatLeaveTheTargetAreRefused(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.WriteFile(dir+"/outside", []byte("safe"), 0o666))
	must(t, os.Mkdir(dir+"/elsewhere", 0o777))
	must(t, os.Mkdir(dir+"/in", 0o777))
	must(t, os.Symlink(dir+"/elsewhere", dir+"/in/planted"))
	must(t, os.Symlink(dir+"/outside", dir+"/in/planted-file"))
	good := member{name: "good", kind: tar.TypeReg, data: "x"}
	for _, bad := range [][]member{
		{{name: "../outside", kind: tar.TypeReg, data: "evil"}},
		{{name: "a/../../outside", kind: tar.TypeReg, data: "evil"}},
		{{name: dir + "/outside", kind: tar.TypeReg, data: "evil"}},
		{{name: "..", kind: tar.TypeDir}, {name: "../d", kind: tar.TypeDir}},
		{{name: "l", link: "../outside", kind: tar.TypeSymlink}},
		{{name: "l", link: "/etc", kind: tar.TypeSymlink}},
		{{name: "l", link: "../elsewhere", kind: tar.TypeSymlink}, {name: "l/x", kind: tar.TypeReg, data: "evil"}},
		{{name: "l", link: "", kind: tar.TypeSymlink}},
		{{name: "h", link: "../outside", kind: tar.TypeLink}},
		{{name: "h", link: "planted/../../outside", kind: tar.TypeLink}},
		{{name: "h", link: dir + "/outside", kind: tar.TypeLink}},
		{{name: "h", link: "planted/x", kind: tar.TypeLink}},
		{{name: "planted/x", kind: tar.TypeReg, data: "evil"}},
		{{name: "planted/d", kind: tar.TypeDir}},
		{{name: "planted", kind: tar.TypeDir}},
		{{name: "dev", kind: tar.TypeChar}},
		{{name: "fifo", kind: tar.TypeFifo}},
		{{name: ".", kind: tar.TypeReg, data: "evil"}},
	} {
		a := g.unpack(dir+"/in", tarOf(t, append([]member{good}, bad...)...), "")
		if a.code(t) != "422 bad_request" {
			t.Errorf("%v: %s", bad, a.body)
		}
	}
	if data, _ := os.ReadFile(dir + "/outside"); string(data) != "safe" {
		t.Fatal("the file outside was written")
	}
	if entries, _ := os.ReadDir(dir + "/elsewhere"); len(entries) != 0 {
		t.Fatal("something was written elsewhere")
	}
	// A planted link in the place of a file is replaced, not followed.
	if a := g.unpack(dir+"/in", tarOf(t, member{name: "planted-file", kind: tar.TypeReg, data: "mine"}), ""); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if data, _ := os.ReadFile(dir + "/outside"); string(data) != "safe" {
		t.Fatal("the planted link was followed")
	}
	for _, broken := range [][]byte{[]byte("no tar at all, but long enough to be read as one: " + strings.Repeat("x", 600)), tarOf(t, member{name: "f", kind: tar.TypeReg, data: strings.Repeat("x", 4000)})[:1500]} {
		if a := g.unpack(dir+"/in", broken, ""); a.code(t) != "422 bad_request" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := g.unpack(dir+"/in", []byte("not gzip"), "gzip"); a.code(t) != "422 bad_request" {
		t.Errorf("%s", a.body)
	}
}
