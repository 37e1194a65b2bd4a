package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// mostPage bounds a page of a list: what is held while it is put together.
const mostPage = 10_000

// filePage is a part of a directory in the order of its names, each directory before what is in it.
// The order is the same for every page, whatever comes and goes in between.
type filePage struct {
	recursive bool
	room      int
	found     []entry
}

// listPage returns at most limit entries behind after, which is a path relative to dir, "" for the
// first page.
func listPage(who account, dir, after string, recursive bool, limit int) ([]entry, error) {
	p := &filePage{recursive: recursive, room: limit}
	var behind []string
	if after != "" {
		behind = strings.Split(after, "/")
	}
	err := as(who, func() error { return p.fill(dir, behind) })
	return p.found, err
}

// fill adds what is in dir behind the path given in parts.
func (p *filePage) fill(dir string, behind []string) error {
	last := ""
	if len(behind) > 0 {
		last = behind[0]
		p.enter(strings.TrimRight(dir, "/")+"/"+last, behind[1:])
	}
	for p.room > 0 {
		wanted := p.room
		names, err := firstNames(dir, last, wanted)
		if err != nil {
			return err
		}
		p.add(dir, names)
		if len(names) < wanted {
			return nil
		}
		last = names[len(names)-1] // some of them may be gone since: a page is short only at the end
	}
	return nil
}

// add adds what these names in dir are, and what is below them, as far as there is room.
func (p *filePage) add(dir string, names []string) {
	for _, name := range names {
		if p.room == 0 {
			return
		}
		found := entry{path: strings.TrimRight(dir, "/") + "/" + name}
		if syscall.Lstat(found.path, &found.stat) != nil {
			continue // gone since
		}
		p.found = append(p.found, found)
		p.room--
		if found.stat.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			p.enter(found.path, nil)
		}
	}
}

// enter goes into a directory below the first. One that may not be read, or that vanished or became
// something else, is passed over.
func (p *filePage) enter(dir string, behind []string) {
	var st syscall.Stat_t
	if !p.recursive || p.room == 0 || syscall.Lstat(dir, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return
	}
	_ = p.fill(dir, behind)
}

// firstNames returns the n first names of a directory behind a name, sorted. It holds at most a few
// times n of them, however many there are.
func firstNames(dir, behind string, n int) ([]string, error) {
	open, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	var names []string
	bound := "" // the greatest name that can still be among the first n; "" before there are n
	for {
		batch, _ := open.Readdirnames(walkBatch)
		if len(batch) == 0 {
			break
		}
		for _, name := range batch {
			if name > behind && (bound == "" || name < bound) {
				names = append(names, name)
			}
		}
		if len(names) >= 2*n+walkBatch {
			slices.Sort(names)
			names = slices.Clip(names[:n])
			bound = names[n-1]
		}
	}
	slices.Sort(names)
	return names[:min(n, len(names))], nil
}
