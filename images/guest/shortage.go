package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"syscall"
	"time"
)

// kills is how often processes were killed for lack of memory, and what tells whose memory it was;
// taken at two moments and compared.
type kills struct {
	own     int64 // in this sandbox
	atLimit int64 // times that it stood at its own limit with nothing to give back; -1: nobody counts
	machine int64 // on the whole machine: read only where there is no counter of our own
}

// kills reads the counters.
func (l *limitReader) kills() kills {
	k := kills{atLimit: -1}
	if l.oomFD < 0 {
		setTo(&k.machine, parseKey(readBounded(l.vmstat, 64<<10), "oom_kill"))
		return k
	}
	var buffer [512]byte
	n, err := syscall.Pread(l.oomFD, buffer[:], 0)
	if err != nil || n <= 0 {
		return k
	}
	setTo(&k.own, parseKey(buffer[:n], "oom_kill"))
	setTo(&k.atLimit, parseKey(buffer[:n], "oom"))
	l.noteSurvived(k.own)
	return k
}

// noteSurvived writes down how many processes were killed for lack of memory while this one lived on, where
// the sandbox's node reads it once this one has ended: nodes say "out of memory" of whatever ends later.
func (l *limitReader) noteSurvived(count int64) {
	if l.legacy == nil || count <= 0 || l.noted.Swap(count) == count {
		return
	}
	_, _ = l.legacy.WriteAt(fmt.Appendf(nil, "oom_kills=%d", count), 0)
}

func setTo(number, found *int64) {
	if found != nil {
		*number = *found
	}
}

// want is what became of the memory between two moments.
type want struct {
	kills     int64 // in this sandbox
	ranOut    bool  // a process of it may have been killed for lack of memory
	hostShort bool  // and it was the machine that was short, or a group above ours
}

// since compares with now.
func (l *limitReader) since(before kills) want {
	now := l.kills()
	if l.oomFD < 0 {
		// No limit of memory is kept here, so there was none to be over.
		ranOut := now.machine > before.machine
		return want{ranOut: ranOut, hostShort: ranOut}
	}
	w := want{kills: max(now.own-before.own, 0)}
	w.ranOut = w.kills > 0
	if now.atLimit >= 0 {
		w.hostShort = w.ranOut && now.atLimit == before.atLimit
	} else {
		w.hostShort = w.ranOut && l.belowLimit(l.names.memoryPeak)
	}
	return w
}

// outOfMemory is the outcome of a process that died for want of memory.
func (r *result) outOfMemory(w want) {
	r.outcome, r.signal, r.hostShort = outcomeOOM, "KILL", w.hostShort
	if w.hostShort {
		r.detail = "the machine's memory ran out, not the sandbox's own"
	}
}

// nearly is the share of a limit, in percent, from which on what was short was the sandbox's own. What
// one process frees while another is refused makes the two numbers differ.
const (
	nearlyMemory = 90
	nearlyPIDs   = 75
	// Of terminals a quarter is kept for the machine itself, and whoever has half of the rest has most.
	nearlyTerminals = 37
)

// belowLimit compares a use of memory, by its file, with the limit; false where either is unknown. Of version 1 the
// peak is the only mark: nothing counts there how often a group met its limit.
func (l *limitReader) belowLimit(used string) bool {
	return below(l.number(used), limitOf(l.file(l.names.memoryLimit)), nearlyMemory)
}

// secondLook is for how long a sandbox that was refused something must stay far from its limit to have
// been refused it by the machine. What ran wild inside may be over by the time that anybody looks, or
// come and go.
const secondLook = 25 * time.Millisecond

// crowd is how many processes the sandbox has; 0 where nobody knows.
func (l *limitReader) crowd() int64 {
	count := int64(0)
	var buffer [32]byte
	if n, err := syscall.Pread(l.crowdFD, buffer[:], 0); err == nil && n > 0 {
		setTo(&count, parseNumber(buffer[:n]))
	}
	return count
}

// forkFailedForHost says whether a process, its pipes or its terminal could not be made though the
// sandbox is far from its own limits: then the machine, or a group above ours, was short. crowd: of
// before it was tried.
func (l *limitReader) forkFailedForHost(errno syscall.Errno, crowd int64) bool {
	switch errno {
	case syscall.EAGAIN:
		limit := limitOf(l.file(l.names.pidsLimit))
		return below(&crowd, limit, nearlyPIDs) && l.staysBelow(l.names.pids, limit, nearlyPIDs)
	case syscall.ENOMEM:
		return l.staysBelow(l.names.memory, limitOf(l.file(l.names.memoryLimit)), nearlyMemory)
	case syscall.ENFILE:
		return true // the machine's table of files: of what one process may hold it is EMFILE
	case syscall.ENOSPC:
		return below(terminalsIn("/dev/pts"), parseNumber(readBounded("/proc/sys/kernel/pty/max", 64)), nearlyTerminals)
	}
	return false
}

// staysBelow looks again and again; false where use or limit are unknown.
func (l *limitReader) staysBelow(used string, limit *int64, percent int64) bool {
	for until := time.Now().Add(secondLook); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if !below(l.number(used), limit, percent) {
			return false
		}
	}
	return true
}

// terminalsIn counts the terminals that a sandbox has, in the directory that is its own alone.
func terminalsIn(directory string) *int64 {
	names, err := os.ReadDir(directory)
	if err != nil {
		return nil
	}
	count := int64(len(names))
	return &count
}

// limitOf reads a limit; "max" is one that nobody reaches, null one that is unknown.
func limitOf(data []byte) *int64 {
	if string(data) == "max\n" {
		most := int64(1<<63 - 1)
		return &most
	}
	return parseNumber(data)
}

func below(used, limit *int64, percent int64) bool {
	return used != nil && limit != nil && float64(*used) < float64(*limit)*float64(percent)/100
}

// inOwnMemory says whether a file call failed where files are memory, below /dev: there a sandbox has
// room of its own, and fills it itself. All else lies on the machine's disk, which others fill too.
func inOwnMemory(err error) bool {
	var at *os.PathError
	var place, memory syscall.Stat_t
	if !errors.As(err, &at) || syscall.Stat(path.Dir(at.Path), &place) != nil {
		return false
	}
	for _, own := range []string{"/dev/shm", "/dev"} {
		if syscall.Stat(own, &memory) == nil && memory.Dev == place.Dev {
			return true
		}
	}
	return false
}
