package main

import (
	"bufio"
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// trimAfterS is how long nothing has run when the guest gives memory back. Hundreds of sandboxes wait
// on one machine: what each holds while it waits is what counts.
const trimAfterS = 2

// trimmer gives memory back once after each stretch of work; it is set again by the next command.
type trimmer struct {
	guest   *guest
	planned atomic.Bool
}

// plan makes a trim follow, unless one is on its way.
func (t *trimmer) plan() {
	if t.planned.Swap(true) {
		return
	}
	t.guest.deadlines.after(trimAfterS, func() {
		t.planned.Store(false)
		switch running, idleS := t.guest.idle(); {
		case running > 0: // its end plans the next
		case idleS < trimAfterS:
			t.plan()
		default:
			debug.FreeOSMemory()
			dropProgramPages()
		}
	})
}

// programPages are the mappings of the program that never change: addresses and lengths.
var programPages [][2]uintptr

// findProgramPages reads them once, before the guest's /proc files are closed to itself.
func findProgramPages() {
	maps, err := os.ReadFile("/proc/self/maps")
	program, err2 := os.Readlink("/proc/self/exe")
	if err != nil || err2 != nil {
		return
	}
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		if pages, ok := parseMapping(lines.Text(), program); ok {
			programPages = append(programPages, pages)
		}
	}
}

// parseMapping reads one line of /proc/PID/maps; ok for unchanging pages of the program.
func parseMapping(line, program string) (pages [2]uintptr, ok bool) {
	f := strings.Fields(line)
	if len(f) != 6 || f[5] != program || (f[1] != "r-xp" && f[1] != "r--p") {
		return pages, false
	}
	first, last, _ := strings.Cut(f[0], "-")
	from, err := strconv.ParseUint(first, 16, 64)
	to, err2 := strconv.ParseUint(last, 16, 64)
	if err != nil || err2 != nil || to <= from {
		return pages, false
	}
	return [2]uintptr{uintptr(from), uintptr(to - from)}, true
}

// dropProgramPages unmaps the program's own pages; they come back from the page cache, which all
// guests share, as they are used.
func dropProgramPages() {
	for _, pages := range programPages {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, pages[0], pages[1], syscall.MADV_DONTNEED)
	}
}
