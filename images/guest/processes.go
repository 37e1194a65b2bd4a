package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// ending is how a main process ended, as the kernel told it. known is false when nobody saw it.
type ending struct {
	known  bool
	signal syscall.Signal // 0 when it exited
	code   int
}

// process is a command's main process below its shim. Its fields are guarded by the table's lock
// until the channel that announces them is closed.
type process struct {
	serial  uint64
	launch  *launch // the memory that shim and command run in; kept until both are done with it
	shimPID int
	pid     int // of the main process

	started  chan struct{} // closed: pid, or why it could not be started, is known
	failedAt stage
	errno    syscall.Errno
	lost     bool // the shim died before it said anything
	// stillborn: and before it had a command
	stillborn bool

	ended    chan struct{} // closed: end and alive are known
	end      ending
	alive    bool // descendants live on
	isEnded  bool
	shimGone bool
	orphaned bool // its shim was killed before its main process ended
}

// processTable knows every shim, and is the one place that waits for children.
type processTable struct {
	mu       sync.Mutex
	bySerial map[uint64]*process
	byShim   map[int]*process
	byMain   map[int]*process      // whose end nobody told yet
	limbo    map[*process]struct{} // whose shim was killed before it told of a start
	serial   uint64
	// abandoned are launches that are never given back, since who runs in them is not known.
	abandoned []*launch
	pipe      *os.File
	readFD    int
	writeFD   int
}

func newProcessTable() (*processTable, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("status pipe: %w", err)
	}
	_ = syscall.SetNonblock(fds[0], true) // the shims' end stays blocking
	t := &processTable{
		bySerial: map[uint64]*process{},
		byShim:   map[int]*process{},
		byMain:   map[int]*process{},
		limbo:    map[*process]struct{}{},
		pipe:     os.NewFile(uintptr(fds[0]), "status"),
		readFD:   fds[0],
		writeFD:  fds[1],
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go t.readRecords()
	go func() {
		for range children {
			t.reap()
		}
	}()
	return t, nil
}

// start forks the shim of l. What becomes of the command comes by p's channels. Fails with the errno
// of the fork.
func (t *processTable) start(l *launch) (*process, error) {
	p := &process{launch: l, started: make(chan struct{}), ended: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial++
	p.serial, l.serial, l.statusFD = t.serial, t.serial, uintptr(t.writeFD)
	pid, errno := startShim(l)
	if errno != 0 {
		return nil, errno
	}
	p.shimPID = int(pid)
	t.bySerial[p.serial] = p
	t.byShim[p.shimPID] = p
	return p, nil
}

func (t *processTable) readRecords() {
	raw, err := t.pipe.SyscallConn()
	if err != nil {
		panic(err)
	}
	_ = raw.Read(func(uintptr) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.takeRecords()
		return false // for ever: wait until there is more
	})
}

// takeRecords takes what the status pipe holds. The lock is held.
func (t *processTable) takeRecords() {
	var records [32]record
	buffer := unsafe.Slice((*byte)(unsafe.Pointer(&records)), unsafe.Sizeof(records))
	for {
		n, err := syscall.Read(t.readFD, buffer)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		for i := range n / int(recordSize) {
			t.take(&records[i])
		}
		if n < len(buffer) {
			return
		}
	}
}

func (t *processTable) take(r *record) {
	p := t.bySerial[r.Serial]
	if p == nil {
		return
	}
	switch r.Kind {
	case recordStarted:
		p.launch.argv, p.launch.envv, p.launch.paths = nil, nil, nil
		p.pid, p.failedAt, p.errno = int(r.PID), r.Stage, syscall.Errno(r.Errno)
		if p.failedAt == stageNone {
			t.byMain[p.pid] = p
		}
		close(p.started)
	case recordEnded:
		delete(t.byMain, p.pid)
		p.end = endingOf(r)
	case recordSettled:
		t.settle(p, r.Alive != 0)
	}
}

func endingOf(r *record) ending {
	const exited = 1 // CLD_EXITED
	if r.Code == exited {
		return ending{known: true, code: int(r.Status)}
	}
	return ending{known: true, signal: syscall.Signal(r.Status)}
}

// settle announces the end of p's main process. The lock is held.
func (t *processTable) settle(p *process, alive bool) {
	if p.isEnded {
		return
	}
	p.isEnded, p.alive = true, alive
	delete(t.limbo, p) // which looks into launches
	if p.shimGone {
		p.launch = nil
	}
	delete(t.byMain, p.pid)
	close(p.ended)
}

// reap waits for every child that ended: shims, and what fell to the guest because its shim is gone.
func (t *processTable) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		t.mu.Lock()
		t.reaped(pid, status)
		t.mu.Unlock()
	}
}

func (t *processTable) reaped(pid int, status syscall.WaitStatus) {
	shim := t.byShim[pid]
	if status.Stopped() {
		if shim != nil { // a command stopped its own shim, which would hide its end
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return
	}
	t.takeRecords() // what it told before it ended
	if shim != nil {
		t.shimEnded(shim)
		return
	}
	p := t.byMain[pid]
	if p == nil {
		p = t.untold(pid)
	}
	if p != nil {
		p.end = ending{known: true, code: status.ExitStatus()}
		if status.Signaled() {
			p.end = ending{known: true, signal: status.Signal()}
		}
		if !isClosed(p.started) {
			p.failedAt, p.errno = p.launch.failedAt, p.launch.errno
			close(p.started)
		}
		t.settle(p, t.anyOrphan())
	}
}

// untold finds whose main process pid was if its shim was killed before it could tell.
func (t *processTable) untold(pid int) *process {
	for _, p := range t.byShim {
		if !isClosed(p.started) && int(p.launch.pid) == pid {
			return p.adopt(pid)
		}
	}
	for p := range t.limbo {
		if int(p.launch.pid) == pid {
			return p.adopt(pid)
		}
	}
	return nil
}

// adopt notes that the main process fell to the guest.
func (p *process) adopt(pid int) *process {
	p.pid, p.orphaned = pid, true
	return p
}

// shimEnded: usually all is told by then. If a command killed its shim before that, its main process
// has fallen to the guest, whose wait loop will see its end.
func (t *processTable) shimEnded(p *process) {
	p.shimGone = true
	delete(t.byShim, p.shimPID)
	delete(t.bySerial, p.serial)
	switch {
	case p.isEnded:
		p.launch = nil
	case p.end.known || (isClosed(p.started) && p.failedAt != stageNone):
		t.settle(p, false)
	case isClosed(p.started):
		p.orphaned = true
		if parentOf(p.pid) != os.Getpid() { // neither its shim nor we can ever learn its status
			t.settle(p, false)
		}
	default:
		t.limbo[p] = struct{}{}
		go t.awaitExec(p)
	}
}

// limboPatience is how long the command of a shim that was killed at once may take to show itself.
const limboPatience = 200 * time.Millisecond

// awaitExec waits until the command of a shim that was killed at once has executed: until then it
// bears the shim's name. If it ends before, the wait loop says so.
func (t *processTable) awaitExec(p *process) {
	deadline := time.Now().Add(limboPatience)
	for !t.leavesLimbo(p, time.Now().After(deadline)) {
		time.Sleep(time.Millisecond) // it is a few system calls away, and no event tells
	}
}

func (t *processTable) leavesLimbo(p *process, late bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(p.started) {
		delete(t.limbo, p)
		return true
	}
	pid := int(p.launch.pid)
	if pid != 0 && parentOf(pid) == os.Getpid() {
		t.byMain[pid] = p.adopt(pid)
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && string(name) != shimComm+"\n" {
			delete(t.limbo, p)
			close(p.started)
			return true
		}
	}
	if !late {
		return false
	}
	// A process that we do not know may still run in this launch's memory.
	t.abandoned = append(t.abandoned, p.launch)
	delete(t.limbo, p)
	p.lost, p.stillborn = true, pid == 0
	close(p.started)
	t.settle(p, false)
	return true
}

// anyOrphan says whether a process lives below the guest that belongs to no living shim.
func (t *processTable) anyOrphan() bool { return len(t.orphans(scanProcesses())) > 0 }

// orphans are the living children of the guest that are no shims. The lock is held.
func (t *processTable) orphans(table processScan) []int {
	var found []int
	self := os.Getpid()
	for pid, entry := range table {
		if entry.parent == self && entry.state != 'Z' && t.byShim[pid] == nil {
			found = append(found, pid)
		}
	}
	return found
}
