package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// groupFiles makes what a control group shows, and returns where and how to change it.
func groupFiles(t *testing.T, files map[string]string) (string, func(name, text string)) {
	root := t.TempDir()
	write := func(name, text string) {
		must(t, os.MkdirAll(filepath.Dir(root+"/"+name), 0o755))
		must(t, os.WriteFile(root+"/"+name, []byte(text), 0o644))
	}
	for name, text := range files {
		write(name, text)
	}
	return root, write
}

func TestMemoryThatRanOutBelowTheOwnLimitIsTheMachines(t *testing.T) {
	v1 := map[string]string{
		"memory/memory.usage_in_bytes": "100\n", "memory/memory.limit_in_bytes": "1000\n",
		"memory/memory.max_usage_in_bytes": "400\n", "memory/memory.oom_control": "under_oom 0\noom_kill 1\n",
	}
	v2 := map[string]string{"memory.current": "100\n", "memory.events": "oom 1\noom_kill 1\n"}
	for name, c := range map[string]struct {
		files, then map[string]string
		want        want
	}{
		"v1, nothing": {v1, nil, want{}},
		"v1, far below": {v1, map[string]string{"memory/memory.oom_control": "oom_kill 2\n"},
			want{kills: 1, ranOut: true, hostShort: true}},
		"v1, at the limit": {v1, map[string]string{"memory/memory.oom_control": "oom_kill 2\n", "memory/memory.max_usage_in_bytes": "999\n"},
			want{kills: 1, ranOut: true}},
		"v1, peak unknown": {v1, map[string]string{"memory/memory.oom_control": "oom_kill 2\n", "memory/memory.max_usage_in_bytes": "?\n"},
			want{kills: 1, ranOut: true}},
		"v2, its own": {v2, map[string]string{"memory.events": "oom 2\noom_kill 3\n"}, want{kills: 2, ranOut: true}},
		"v2, another's": {v2, map[string]string{"memory.events": "oom 1\noom_kill 2\n"},
			want{kills: 1, ranOut: true, hostShort: true}},
	} {
		root, write := groupFiles(t, c.files)
		l := newLimitReader(root)
		before := l.kills()
		for file, text := range c.then {
			write(file, text)
		}
		if got := l.since(before); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWithoutALimitOfMemoryTheMachinesOwnCounterTells(t *testing.T) {
	root, write := groupFiles(t, map[string]string{"vmstat": "nr_free_pages 7\noom_kill 3\n"})
	l := newLimitReader(root)
	l.vmstat = root + "/vmstat"
	before := l.kills()
	if got := l.since(before); got != (want{}) {
		t.Errorf("%+v", got)
	}
	write("vmstat", "oom_kill 4\n")
	if got := l.since(before); got != (want{ranOut: true, hostShort: true}) {
		t.Errorf("%+v", got)
	}
}

func TestAForkThatFailsFarFromTheOwnLimitsIsTheMachinesFault(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		errno syscall.Errno
		want  bool
	}{
		"v1 full":      {map[string]string{"pids/pids.current": "96\n", "pids/pids.max": "96\n"}, syscall.EAGAIN, false},
		"v1 empty":     {map[string]string{"pids/pids.current": "20\n", "pids/pids.max": "96\n"}, syscall.EAGAIN, true},
		"v1 no limit":  {map[string]string{"pids/pids.current": "20\n", "pids/pids.max": "max\n"}, syscall.EAGAIN, true},
		"v2 empty":     {map[string]string{"pids.current": "20\n", "pids.max": "96\n"}, syscall.EAGAIN, true},
		"v2 memory":    {map[string]string{"memory.current": "20\n", "memory.max": "1000\n"}, syscall.ENOMEM, true},
		"v2 full":      {map[string]string{"memory.current": "990\n", "memory.max": "1000\n"}, syscall.ENOMEM, false},
		"another":      {map[string]string{"pids/pids.current": "20\n", "pids/pids.max": "96\n"}, syscall.EMFILE, false},
		"files":        {nil, syscall.ENFILE, true},
		"nothing seen": {nil, syscall.EAGAIN, false},
	} {
		root, _ := groupFiles(t, c.files)
		if got := newLimitReader(root).forkFailedForHost(c.errno, 0); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAStormThatIsOverWhenSomebodyLooksWasTheSandboxesOwn(t *testing.T) {
	root, write := groupFiles(t, map[string]string{"pids.current": "96\n", "pids.max": "96\n"})
	l := newLimitReader(root)
	crowd := l.crowd()
	write("pids.current", "3\n")
	if crowd != 96 || l.forkFailedForHost(syscall.EAGAIN, crowd) {
		t.Errorf("%d processes before it", crowd)
	}
}

func TestAStormThatComesAndGoesWasTheSandboxesOwn(t *testing.T) {
	root, write := groupFiles(t, map[string]string{"pids.current": "3\n", "pids.max": "96\n"})
	l := newLimitReader(root)
	crowd := l.crowd()
	again := time.AfterFunc(secondLook/5, func() { write("pids.current", "95\n") })
	defer again.Stop()
	if l.forkFailedForHost(syscall.EAGAIN, crowd) {
		t.Error("it was told as the machine's")
	}
}

func TestWhoeverHasMostTerminalsIsTheOneWhoUsedThemUp(t *testing.T) {
	root, write := groupFiles(t, nil)
	for _, name := range []string{"ptmx", "0", "1"} {
		write(name, "")
	}
	most := int64(4096)
	few := int64(4)
	if !below(terminalsIn(root), &most, nearlyTerminals) || below(terminalsIn(root), &few, nearlyTerminals) {
		t.Error("3 of 4096 are few, and of 4 most")
	}
	if below(terminalsIn(root+"/none"), &most, nearlyTerminals) {
		t.Error("what cannot be seen tells nothing")
	}
}

func TestADiskThatIsFullIsTheMachinesUnlessItIsMemoryOfTheSandbox(t *testing.T) {
	full := func(at string) error { return &os.PathError{Op: "write", Path: at, Err: syscall.ENOSPC} }
	for name, c := range map[string]struct {
		err  error
		want any
	}{
		"disk":        {full("/proc/self/file"), true},
		"memory":      {full("/dev/shm/file"), nil},
		"no place":    {syscall.ENOSPC, true},
		"quota":       {&os.PathError{Op: "write", Path: "/proc/self/file", Err: syscall.EDQUOT}, nil},
		"not a place": {full("/none/such/file"), true},
	} {
		p := asProblem(c.err)
		if p.Code != "disk_full" || p.Details["host_short"] != c.want {
			t.Errorf("%s: %v", name, p)
		}
	}
}
