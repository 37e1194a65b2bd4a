package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"
)

// harden makes the guest hard to end or to read from inside. What the kernel refuses is left: none of
// it is relied on.
func harden() {
	syscall.Umask(0o022)
	// Caught, not ignored: what is ignored would stay so in commands.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		// Faults of our own still crash us; these are caught when a process inside sends them.
		syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGSYS,
		syscall.SIGSTKFLT, syscall.SIGXCPU, syscall.SIGXFSZ)
	go func() {
		for range ignored {
		}
	}()
	for _, number := range unhandledSignals {
		ignoreSignal(number)
	}
	if os.Getpid() != 1 {
		prctl(prSubreaper, 1)
	}
	if f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("-1000")
		f.Close()
	}
	prctl(prSetDumpable, 0)
	// Whoever has all our ids may set the limits of our process; nobody inside can have these.
	_ = syscall.Setresgid(-1, -1, nobodysGroup)
	if leavesTheSandbox(readBounded("/proc/sys/kernel/core_pattern", 256)) {
		_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 1, Max: 1})
	}
}

// nobodysGroup is our saved group alone, which gives us no right and is lost in what we start.
const nobodysGroup = 65533

// leavesTheSandbox says whether a process that crashes is handed to a program of the machine's own, or
// to a socket of it. The kernel does that whatever a core may be long, but for a limit of 1; and whoever
// crashes often would have the machine work and write for them.
func leavesTheSandbox(corePattern []byte) bool {
	return len(corePattern) > 0 && (corePattern[0] == '|' || corePattern[0] == '@')
}

// unhandledSignals are those that the runtime installs no handler for. The kernel drops them for the
// first process of a namespace, but not while the thread that it asks has them blocked, as every thread
// has for a moment when it starts another: then a burst of them ends the guest. Commands reset them.
var unhandledSignals = [...]uintptr{32, 34}

func ignoreSignal(number uintptr) {
	action := [4]uint64{1} // struct sigaction: SIG_IGN, no flags, no restorer, no mask
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, number, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

func prctl(option, value uintptr) {
	_, _, _ = syscall.Syscall6(syscall.SYS_PRCTL, option, value, 0, 0, 0, 0)
}

// reserveDescriptors fills the descriptors below firstFreeFD, which a shim overwrites, and keeps those
// that were inherited out of commands.
func reserveDescriptors() error {
	inherited, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		for _, entry := range inherited {
			if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
				syscall.CloseOnExec(fd)
			}
		}
	}
	for {
		fd, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("/dev/null: %w", err)
		}
		if fd >= firstFreeFD {
			nullFD = fd
			return nil
		}
	}
}

// warmThreads is how many threads are made before any command runs: with a pids limit that commands
// have filled, the runtime cannot start another and would die.
const warmThreads = 20

func prewarm() {
	var all sync.WaitGroup
	release := make(chan struct{})
	for range warmThreads {
		all.Add(1)
		go func() {
			runtime.LockOSThread()
			all.Done()
			<-release
			runtime.UnlockOSThread()
		}()
	}
	all.Wait()
	close(release)
}
