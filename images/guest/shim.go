package main

// A command runs below a subreaper of its own, the shim, so that its whole tree can be found (ADR 0007).
// The shim executes nothing: it is a process that shares the guest's memory, as between vfork and exec,
// but for its whole life. So it copies no page table and costs no memory, where a fork of the guest cost
// 2 ms and a re-exec 1.2 ms.
//
// Shim and command share memory with the running guest but are no threads of its Go runtime, which must
// not be entered from here: no allocation, no pointer written, no stack growth, no lock. So every
// function here is nosplit, uses raw system calls alone, and finds all it needs in the launch that was
// prepared before. All signals are blocked: a handler would be the runtime's.

import (
	"syscall"
	"unsafe"
)

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

// cloneShim makes a process that calls shimMain on the stack; cloneCommand one that calls commandMain.
func cloneShim(flags, stack uintptr) (pid, errno uintptr)
func cloneCommand(flags, stack uintptr) (pid, errno uintptr)

// Descriptors 0 to 15 of the guest are reserved, so that the shim may put what it needs there
// without asking what it overwrites.
const (
	statusFD    = 10
	firstFreeFD = 16
)

// stage says how far a command came before it failed to start.
type stage uint32

const (
	stageNone stage = iota
	stageFork
	stageDescriptors
	stageUser
	stageCapabilities
	stageChdir
	stageExec
	stageTerminal
	stageWorkdir // of the two directories it is the default one that cannot be entered
)

// Kinds of record that a shim writes to the status pipe.
const (
	recordStarted = iota + 1 // the main process executed, or failed to
	recordEnded              // the main process ended; it is not reaped yet
	recordSettled            // it is reaped; value says whether descendants live on
)

// record is what a shim tells the guest. It is smaller than PIPE_BUF, so writes never mix.
type record struct {
	Serial uint64
	Kind   uint32
	PID    int32 // of the main process
	Stage  stage
	Errno  uint32
	Code   int32 // si_code of the end: CLD_EXITED, CLD_KILLED, CLD_DUMPED
	Status int32 // exit code or signal
	Alive  uint32
	_      uint32
}

const (
	recordSize    = unsafe.Sizeof(record{})
	maxRlimits    = 3
	siPid         = 16 // offsets in siginfo_t of a SIGCHLD, 64 bit
	siStatus      = 24
	siCode        = 8
	wnowait       = 0x01000000
	wexited       = 4
	pAll          = 0
	capVersion3   = 0x20080522
	prCapbsetDrop = 24
	prNoNewPrivs  = 38
	prSubreaper   = 36
	prSetName     = 15
	prCapAmbient  = 47
	prSetDumpable = 4
)

type rlimit64 struct{ resource, cur, max uint64 }

// launch is everything a shim and its command need, prepared in the guest before the fork.
type launch struct {
	serial     uint64
	statusFD   uintptr
	stdio      [3]uintptr
	extra      uintptr // descriptor that becomes 9, and 2 becomes 8 as well; 0 for none
	paths      []*byte // what to execute: the first that is there
	argv, envv []*byte
	dir        *byte
	workdir    *byte // where dir starts; nil for a place of the caller's own
	rlimits    [maxRlimits]rlimit64
	rlimitN    int
	tty        bool // stdin becomes the controlling terminal
	setUser    bool
	uid, gid   uintptr
	groups     []uint32
	dropCaps   bool
	cpus       *cpuMask // nil: as the guest
	oomPath    *byte
	oomValue   [4]byte
	stacks     *[2][stackWords]uint64
	shimName   *byte

	// Written by the shim and its command alone.
	pid      int32 // of the command, before anything else
	failedAt stage
	errno    syscall.Errno
	rec      record
	siginfo  [128]byte
	zeros    [64]byte
	ones     [8]byte
	capHead  [2]uint32
	capData  [6]uint32
}

// stackWords is the size of a stack in words of 8 bytes: the functions here need a fraction of it.
const stackWords = 512

// stackTop is where a stack begins for a function that takes l: the argument lies where the two
// processors' calling conventions look for it.
//
//go:nosplit
//go:norace
func stackTop(l *launch, stack *[stackWords]uint64) uintptr {
	const top = stackWords - 4
	stack[top], stack[top+1] = uint64(uintptr(unsafe.Pointer(l))), uint64(uintptr(unsafe.Pointer(l)))
	return uintptr(unsafe.Pointer(&stack[top]))
}

// startShim starts the shim of l and returns its pid. l must stay referenced until the shim is reaped.
//
//go:nosplit
//go:norace
func startShim(l *launch) (pid uintptr, errno syscall.Errno) {
	top := stackTop(l, &l.stacks[0])
	runtimeBeforeFork()
	pid, failed := cloneShim(syscall.CLONE_VM|uintptr(syscall.SIGCHLD), top)
	runtimeAfterFork()
	return pid, syscall.Errno(failed)
}

//go:nosplit
//go:norace
func shimMain(l *launch) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 2, uintptr(unsafe.Pointer(&l.ones)), 0, 8, 0, 0)
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSubreaper, 1, 0, 0, 0, 0)
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSetName, uintptr(unsafe.Pointer(l.shimName)), 0, 0, 0, 0)
	if shimDescriptors(l) {
		pid, errno := cloneCommand(syscall.CLONE_VM|syscall.CLONE_VFORK|uintptr(syscall.SIGCHLD), stackTop(l, &l.stacks[1]))
		if errno != 0 {
			l.failedAt, l.errno = stageFork, syscall.Errno(errno)
		}
		l.rec.PID = int32(pid)
	}
	syscall.RawSyscall(sysCloseRange, 0, statusFD-1, 0)
	l.rec.Stage, l.rec.Errno = l.failedAt, uint32(l.errno)
	tell(l, recordStarted)
	shimReap(l)
}

// shimDescriptors puts the command's descriptors where it expects them and closes all others.
//
//go:nosplit
//go:norace
func shimDescriptors(l *launch) bool {
	var errno syscall.Errno
	for i := 0; i < 3 && errno == 0; i++ {
		_, _, errno = syscall.RawSyscall(syscall.SYS_DUP3, l.stdio[i], uintptr(i), 0)
	}
	if l.extra != 0 && errno == 0 {
		syscall.RawSyscall(syscall.SYS_DUP3, l.stdio[2], 8, 0)
		_, _, errno = syscall.RawSyscall(syscall.SYS_DUP3, l.extra, 9, 0)
	}
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_DUP3, l.statusFD, statusFD, syscall.O_CLOEXEC)
	}
	if errno != 0 {
		l.failedAt, l.errno = stageDescriptors, errno
		return false
	}
	if _, _, e := syscall.RawSyscall(sysCloseRange, firstFreeFD, ^uintptr(0)>>32, 0); e != 0 {
		for fd := uintptr(firstFreeFD); fd < 1<<16; fd++ { // kernels before 5.9
			syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
		}
	}
	return true
}

// shimReap reaps whatever falls to the shim, until nothing below it lives. The main process's status
// is told before it is reaped: a shim killed in between leaves a zombie for the guest to read it from.
//
//go:nosplit
//go:norace
func shimReap(l *launch) {
	main := l.rec.PID
	info := unsafe.Pointer(&l.siginfo)
	for {
		_, _, errno := syscall.RawSyscall6(sysWaitid, pAll, 0, uintptr(info), wexited|wnowait, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			break
		}
		pid := *(*int32)(unsafe.Add(info, siPid))
		if pid == main && l.failedAt == stageNone {
			l.rec.Code = *(*int32)(unsafe.Add(info, siCode))
			l.rec.Status = *(*int32)(unsafe.Add(info, siStatus))
			tell(l, recordEnded)
		}
		syscall.RawSyscall6(syscall.SYS_WAIT4, uintptr(pid), 0, 0, 0, 0, 0)
		if pid == main && l.failedAt == stageNone {
			main = 0 // its number may come again
			_, _, gone := syscall.RawSyscall6(sysWaitid, pAll, 0, uintptr(info), wexited|wnowait|syscall.WNOHANG, 0, 0)
			l.rec.Alive = 1
			if gone == syscall.ECHILD {
				l.rec.Alive = 0
			}
			tell(l, recordSettled)
		}
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

//go:nosplit
//go:norace
func tell(l *launch, kind uint32) {
	l.rec.Serial, l.rec.Kind = l.serial, kind
	for {
		_, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, statusFD, uintptr(unsafe.Pointer(&l.rec)), recordSize)
		if errno != syscall.EINTR {
			return
		}
	}
}

// commandMain is the command until it executes; the shim waits for that (vfork), then reads what it
// wrote to the launch.
//
//go:nosplit
//go:norace
func commandMain(l *launch) {
	pid, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	l.pid = int32(pid)
	syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	for sig := uintptr(1); sig <= 64; sig++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&l.zeros)), 0, 8, 0, 0)
	}
	if fd, _, errno := syscall.RawSyscall6(syscall.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(l.oomPath)),
		syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0, 0); errno == 0 {
		syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&l.oomValue)), 3)
	}
	if l.cpus != nil { // for what programs count, no wall: a refusal is no failure
		syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, l.cpus.size, uintptr(unsafe.Pointer(&l.cpus.bits)))
	}
	for i := 0; i < l.rlimitN; i++ {
		syscall.RawSyscall6(sysPrlimit64, 0, uintptr(l.rlimits[i].resource), uintptr(unsafe.Pointer(&l.rlimits[i].cur)), 0, 0, 0)
	}
	if commandTerminal(l) && commandCredentials(l) && commandChdir(l) {
		syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 2, uintptr(unsafe.Pointer(&l.zeros)), 0, 8, 0, 0)
		commandExec(l)
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// commandTerminal makes the terminal that stdin is the session's own, with the command in its foreground.
//
//go:nosplit
//go:norace
func commandTerminal(l *launch) bool {
	if !l.tty {
		return true
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, 0, ioctlTakeTerminal, 0)
	if errno != 0 {
		l.failedAt, l.errno = stageTerminal, errno
	}
	return errno == 0
}

//go:nosplit
//go:norace
func commandCredentials(l *launch) bool {
	if l.dropCaps {
		for c := uintptr(0); c < 64; c++ { // needs CAP_SETPCAP; the steps below hold without it
			if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapbsetDrop, c, 0, 0, 0, 0); errno != 0 {
				break
			}
		}
	}
	if l.setUser {
		var groups unsafe.Pointer
		if len(l.groups) > 0 {
			groups = unsafe.Pointer(&l.groups[0])
		}
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(l.groups)), uintptr(groups), 0)
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETRESGID, l.gid, l.gid, l.gid)
		}
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETRESUID, l.uid, l.uid, l.uid)
		}
		if errno != 0 {
			l.failedAt, l.errno = stageUser, errno
			return false
		}
	}
	if l.dropCaps {
		syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, 4, 0, 0, 0, 0)
		_, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&l.capHead)), uintptr(unsafe.Pointer(&l.capData)), 0)
		if errno == 0 {
			_, _, errno = syscall.RawSyscall6(syscall.SYS_PRCTL, prNoNewPrivs, 1, 0, 0, 0, 0)
		}
		if errno != 0 {
			l.failedAt, l.errno = stageCapabilities, errno
			return false
		}
	}
	return true
}

//go:nosplit
//go:norace
func commandChdir(l *launch) bool {
	_, _, errno := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(l.dir)), 0, 0)
	if errno == 0 {
		return true
	}
	l.failedAt, l.errno = stageChdir, errno
	if l.workdir != nil {
		_, _, errno = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(l.workdir)), 0, 0)
		if errno != 0 {
			l.failedAt, l.errno = stageWorkdir, errno
		}
	}
	return false
}

// commandExec tries the paths as execvp does: what is missing is passed over, and a file that may
// not be executed is told only if none after it may.
//
//go:nosplit
//go:norace
func commandExec(l *launch) {
	failure := syscall.ENOENT
	for i := 0; i < len(l.paths); i++ {
		_, _, errno := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(l.paths[i])),
			uintptr(unsafe.Pointer(&l.argv[0])), uintptr(unsafe.Pointer(&l.envv[0])))
		if errno == syscall.EACCES {
			failure = errno
			continue
		}
		if errno != syscall.ENOENT && errno != syscall.ENOTDIR {
			failure = errno
			break
		}
		if errno == syscall.ENOTDIR && len(l.paths) == 1 {
			failure = errno
		}
	}
	l.failedAt, l.errno = stageExec, failure
}
