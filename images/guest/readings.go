package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// readings are what the sandbox uses now; null where it cannot be had.
type readings struct {
	CPUS         *float64 `json:"cpu_s"`
	MemoryBytes  *int64   `json:"memory_bytes"`
	MemoryPeak   *int64   `json:"memory_peak_bytes"`
	MemoryLimit  *int64   `json:"memory_limit_bytes"`
	PIDs         *int64   `json:"pids"`
	OOMKills     *int64   `json:"oom_kills"`
	DiskFree     *int64   `json:"disk_free_bytes"`
	LoadOneMinue *float64 `json:"load_1m"`
}

// limitReader reads the sandbox's own cgroup where it is visible.
type limitReader struct {
	root  string
	kind  string // v1, v2, none
	names groupNames
	oomFD int // the file with the oom_kill counter, kept open; -1 for none
	// crowdFD is the file with the number of processes, kept open; -1 for none.
	crowdFD int
	// legacy is what the sandbox's node reads after our end; nil where nobody does. noted: what it says.
	legacy *os.File
	noted  atomic.Int64
	vmstat string // the machine's own counters
}

// groupNames are the names of the files of a cgroup, by its version.
type groupNames struct {
	memory, memoryPeak, memoryLimit, memoryEvents, pids, pidsLimit string
}

var (
	groupV1 = groupNames{
		"memory/memory.usage_in_bytes", "memory/memory.max_usage_in_bytes", "memory/memory.limit_in_bytes",
		"memory/memory.oom_control", "pids/pids.current", "pids/pids.max",
	}
	groupV2 = groupNames{
		"memory.current", "memory.peak", "memory.max", "memory.events", "pids.current", "pids.max",
	}
)

func newLimitReader(root string) *limitReader {
	l := &limitReader{root: root, kind: "none", oomFD: -1, crowdFD: -1, vmstat: "/proc/vmstat"}
	has := func(name string) bool { return exists(root + "/" + name) }
	switch {
	case has(groupV1.memory):
		l.kind, l.names = "v1", groupV1
	case has(groupV2.memory):
		l.kind, l.names = "v2", groupV2
	case has(groupV1.pids), has("cpuacct/cpuacct.usage"):
		l.kind, l.names = "v1", groupV1
	case has(groupV2.pids), has("cpu.stat"):
		l.kind, l.names = "v2", groupV2
	}
	if l.kind != "none" {
		l.crowdFD = openToRead(root + "/" + l.names.pids)
		if has(l.names.memory) {
			l.oomFD = openToRead(root + "/" + l.names.memoryEvents)
		}
	}
	return l
}

// openToRead returns -1 for what cannot be.
func openToRead(path string) int {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (l *limitReader) read(workdir string) readings {
	var r readings
	if l.kind != "none" {
		r.MemoryBytes = l.number(l.names.memory)
		r.MemoryPeak = l.number(l.names.memoryPeak)
		r.MemoryLimit = limitOrNull(l.number(l.names.memoryLimit))
		r.PIDs = l.number(l.names.pids)
		r.OOMKills = parseKey(l.file(l.names.memoryEvents), "oom_kill")
	}
	switch l.kind {
	case "v1":
		r.CPUS = scaled(l.number("cpuacct/cpuacct.usage"), 1e9)
	case "v2":
		r.CPUS = scaled(parseKey(l.file("cpu.stat"), "usage_usec"), 1e6)
	}
	r.DiskFree = diskFree(workdir)
	r.LoadOneMinue = parseLoad(readBounded("/proc/loadavg", 256))
	return r
}

func (l *limitReader) file(name string) []byte { return readBounded(l.root+"/"+name, 64<<10) }

func (l *limitReader) number(name string) *int64 { return parseNumber(l.file(name)) }

// parseNumber reads a file of one number; "max" and all else is null.
func parseNumber(data []byte) *int64 {
	text := strings.TrimSpace(string(data))
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	number := int64(min(value, 1<<63-1))
	return &number
}

// parseKey reads the number behind a key in a file of "key number" lines.
func parseKey(data []byte, key string) *int64 {
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		name, value, found := bytes.Cut(line, []byte{' '})
		if found && string(name) == key {
			return parseNumber(value)
		}
	}
	return nil
}

func parseLoad(data []byte) *float64 {
	first, _, _ := strings.Cut(string(data), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || load < 0 || load > 1e9 {
		return nil
	}
	return &load
}

// limitOrNull: cgroup v1 shows "no limit" as a number near the largest.
func limitOrNull(value *int64) *int64 {
	if value != nil && *value >= 1<<60 {
		return nil
	}
	return value
}

func scaled(value *int64, unit float64) *float64 {
	if value == nil {
		return nil
	}
	result := float64(*value) / unit
	return &result
}

func diskFree(path string) *int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil && syscall.Statfs("/", &fs) != nil {
		return nil
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	return &free
}
