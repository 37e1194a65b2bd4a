package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// procEntry is one process as /proc/PID/stat shows it.
type procEntry struct {
	parent  int
	state   byte
	startAt uint64 // clock ticks since boot
}

type processScan map[int]procEntry

// scanProcesses reads every process that is visible. A process that comes or goes meanwhile may or
// may not be in it.
func scanProcesses() processScan {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	table := make(processScan, len(names))
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if entry, ok := readProcess(pid); ok {
				table[pid] = entry
			}
		}
	}
	return table
}

func readProcess(pid int) (procEntry, bool) {
	var buffer [512]byte
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return procEntry{}, false
	}
	n, _ := syscall.Read(fd, buffer[:])
	syscall.Close(fd)
	return parseStat(buffer[:max(n, 0)])
}

// parseStat reads state, parent and start time. The name in brackets may hold anything, brackets too.
func parseStat(line []byte) (procEntry, bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return procEntry{}, false
	}
	fields := bytes.Fields(line[end+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return procEntry{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return procEntry{}, false
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return procEntry{}, false
	}
	return procEntry{parent: parent, state: fields[0][0], startAt: start}, true
}

func parentOf(pid int) int {
	entry, ok := readProcess(pid)
	if !ok {
		return 0
	}
	return entry.parent
}

// below lists the living descendants of the roots, the roots themselves left out.
func (s processScan) below(roots map[int]bool) []int {
	var found []int
	for pid, entry := range s {
		if entry.state == 'Z' || roots[pid] {
			continue
		}
		for up, steps := entry.parent, 0; up > 0 && steps < 1<<16; steps++ {
			if roots[up] {
				found = append(found, pid)
				break
			}
			next, ok := s[up]
			if !ok {
				break
			}
			up = next.parent
		}
	}
	return found
}

// ignoredSignals reads the SigIgn line of /proc/PID/status as a bit set.
func ignoredSignals(status []byte) uint64 {
	for len(status) > 0 {
		line, rest, _ := bytes.Cut(status, []byte{'\n'})
		status = rest
		if value, found := bytes.CutPrefix(line, []byte("SigIgn:")); found {
			set, _ := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
			return set
		}
	}
	return 0
}
