package main

import (
	"archive/tar"
	"os"
	"strings"
	"testing"
)

func TestMemberThatBreaksOffLeavesWhatWasThere(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.Mkdir(dir+"/in", 0o777))
	must(t, os.WriteFile(dir+"/in/f", []byte("old"), 0o666))
	whole := tarOf(t, member{name: "f", kind: tar.TypeReg, data: strings.Repeat("x", 4000)},
		member{name: "g", kind: tar.TypeReg, data: strings.Repeat("y", 4000)})
	for _, size := range []int{512, 513, 600, 4000} {
		if a := g.unpack(dir+"/in", whole[:size], ""); size > 512 && a.code(t) != "422 bad_request" {
			t.Errorf("%d: %d %s", size, a.status, a.body)
		}
		if data, _ := os.ReadFile(dir + "/in/f"); string(data) != "old" {
			t.Fatalf("cut at %d: %d bytes in its place", size, len(data))
		}
	}
	if a := g.unpack(dir+"/in", whole[:6000], ""); a.code(t) != "422 bad_request" {
		t.Errorf("%d %s", a.status, a.body)
	}
	entries, err := os.ReadDir(dir + "/in")
	must(t, err)
	if len(entries) != 1 || entries[0].Name() != "f" {
		t.Fatalf("left behind: %v", entries)
	}
}

func TestDirectoriesThatForbidWritingAreFilledFirst(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	data := tarOf(t,
		member{name: "locked/", kind: tar.TypeDir, mode: 0o555},
		member{name: "locked/deep/", kind: tar.TypeDir, mode: 0o500},
		member{name: "locked/deep/f", kind: tar.TypeReg, data: "x"},
		member{name: "opened/", kind: tar.TypeDir, mode: 0o500},
		member{name: "opened/", kind: tar.TypeDir, mode: 0o750},
	)
	if a := g.unpack(dir+"/in", data, ""); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	for name, mode := range map[string]os.FileMode{"locked": 0o555, "locked/deep": 0o500, "opened": 0o750} {
		if info, err := os.Stat(dir + "/in/" + name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	must(t, os.Chmod(dir+"/in/locked", 0o755))
	must(t, os.Chmod(dir+"/in/locked/deep", 0o755))
}

func TestLinkToItselfLosesNothing(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	data := tarOf(t,
		member{name: "f", kind: tar.TypeReg, data: "kept"},
		member{name: "f", link: "f", kind: tar.TypeLink},
		member{name: "g", link: "f", kind: tar.TypeLink},
		member{name: "g", link: "f", kind: tar.TypeLink},
	)
	if a := g.unpack(dir+"/in", data, ""); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	entries, _ := os.ReadDir(dir + "/in")
	for _, name := range []string{"f", "g"} {
		if got, _ := os.ReadFile(dir + "/in/" + name); string(got) != "kept" || len(entries) != 2 {
			t.Errorf("%s: %q in %v", name, got, entries)
		}
	}
}

func TestTreeThatCannotBePackedIsRefusedByTheNameOfWhatIsInTheWay(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	long := dir + "/t/" + strings.Repeat(strings.Repeat("d", 200)+"/", 10)
	must(t, os.MkdirAll(long, 0o777))
	at0, err := os.Getwd()
	must(t, err)
	must(t, os.Chdir(long))
	for range 12 { // deeper than a path may be long
		must(t, os.Mkdir(strings.Repeat("e", 200), 0o777))
		must(t, os.Chdir(strings.Repeat("e", 200)))
	}
	must(t, os.Chdir(at0))
	if a := g.send("GET", "/v1/files/archive"+at(dir+"/t"), nil); a.code(t) != "422 name_too_long" {
		t.Errorf("%d %.300s", a.status, a.body)
	}
	if os.Geteuid() != 0 {
		t.Skip("who is not root has one user")
	}
	must(t, os.MkdirAll(dir+"/u/closed", 0o755))
	must(t, os.WriteFile(dir+"/u/f", []byte("x"), 0o644))
	for _, name := range []string{"/u/closed", "/u/f"} {
		must(t, os.Chmod(dir+name, 0))
		a := g.send("GET", "/v1/files/archive"+at(dir+"/u")+"&user=65534", nil)
		if a.code(t) != "403 file_forbidden" || !strings.Contains(string(a.body), name) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		must(t, os.Chmod(dir+name, 0o755))
	}
	if a := g.send("GET", "/v1/files/archive"+at(dir+"/u")+"&user=65534", nil); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
