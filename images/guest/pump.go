package main

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	pumpBytes   = 64 << 10
	widePipe    = 1 << 20
	setPipeSize = 1031
	fionread    = 0x541B

	// A command that writes faster than hotBytes in hotWindow is read in larger and fewer steps: else
	// it and we wake each other for every few kilobytes.
	hotWindow = 2 * time.Millisecond
	hotBytes  = 128 << 10
	hotPause  = 400 * time.Microsecond
)

var pumpBuffers = sync.Pool{New: func() any { return new([pumpBytes]byte) }}

// sink takes what a pump reads.
type sink func(data []byte)

// pump reads the guest's end of a pipe, for as long as anybody has its other end open. What it reads
// while it has no sink is thrown away.
type pump struct {
	fd       int
	file     *os.File // nil until it runs
	terminal bool     // the end is our word: nothing is read after the cut

	mu     sync.Mutex
	sink   sink
	eof    bool
	border chan struct{} // closed once all that was in the pipe when it was asked for is delivered

	// Of the pump's own goroutine: how fast it goes.
	since     time.Time
	window    int // bytes since
	last      int // bytes of the last read
	hot, wide bool
}

func newPump(fd int, to sink) *pump { return &pump{fd: fd, sink: to} }

func newTerminalPump(fd int, to sink) *pump { return &pump{fd: fd, sink: to, terminal: true} }

// start begins to read in a goroutine of its own.
func (p *pump) start() {
	p.file = os.NewFile(uintptr(p.fd), "pipe")
	go p.run()
}

func (p *pump) run() {
	defer p.file.Close()
	raw, err := p.file.SyscallConn()
	if err != nil {
		p.atEnd()
		return
	}
	for {
		more := true
		err := raw.Read(func(uintptr) bool {
			var ready bool
			ready, more = p.step()
			return ready
		})
		if err != nil && !os.IsTimeout(err) {
			more = false
		}
		if !more {
			p.atEnd()
			return
		}
		switch {
		case !p.reachBorder():
			p.pace()
		case p.terminal:
			p.atEnd()
			return
		}
	}
}

// step reads once. ready is false when the pipe is empty, more is false at its end.
func (p *pump) step() (ready, more bool) {
	buffer := pumpBuffers.Get().(*[pumpBytes]byte)
	defer pumpBuffers.Put(buffer)
	n, err := syscall.Read(p.fd, buffer[:])
	switch {
	case err == syscall.EAGAIN:
		return false, true
	case err == syscall.EINTR:
		return true, true
	case err != nil || n == 0:
		return true, false
	}
	p.window += n
	p.last = n
	p.deliver(buffer[:n])
	return true, true
}

// pace lets the pipe of a command that writes much fill before it is read again, and makes it larger.
func (p *pump) pace() {
	if p.terminal {
		return // nobody waits longer for an echo than for the kernel
	}
	now := time.Now()
	if now.Sub(p.since) > hotWindow {
		p.hot = p.window > hotBytes
		p.since, p.window = now, 0
	}
	if !p.hot || p.last == pumpBytes {
		return
	}
	if !p.wide {
		p.wide = true
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(p.fd), setPipeSize, widePipe)
	}
	time.Sleep(hotPause)
}

func (p *pump) deliver(data []byte) {
	p.mu.Lock()
	to := p.sink
	p.mu.Unlock()
	if to != nil {
		to(data)
	}
}

func (p *pump) atEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eof = true
	if p.border != nil {
		close(p.border)
		p.border = nil
	}
}

// reachBorder answers cut, and says whether it was asked: it delivers what is in the pipe now and no more, since a process that
// writes without end would keep us here.
func (p *pump) reachBorder() bool {
	p.mu.Lock()
	border := p.border
	p.mu.Unlock()
	if border == nil {
		return false
	}
	p.deliverHeld()
	p.mu.Lock()
	p.sink = nil
	p.border = nil
	p.mu.Unlock()
	_ = p.file.SetReadDeadline(time.Time{})
	close(border)
	return true
}

// deliverHeld delivers what the pipe holds now. It reports whether the pipe may hold more later.
func (p *pump) deliverHeld() bool {
	held := p.held()
	buffer := pumpBuffers.Get().(*[pumpBytes]byte)
	defer pumpBuffers.Put(buffer)
	for held >= 0 {
		// One read more than it holds, to see its end.
		n, err := syscall.Read(p.fd, buffer[:min(int(held)+1, pumpBytes)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err == syscall.EAGAIN
		}
		if n == 0 {
			return false
		}
		held -= int32(n)
		p.deliver(buffer[:n])
	}
	return true
}

// mostInTerminal is more than a terminal holds; it counts only part of that itself.
const mostInTerminal = 64 << 10

func (p *pump) held() int32 {
	if p.terminal {
		return mostInTerminal
	}
	var held int32
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(p.fd), fionread, uintptr(unsafe.Pointer(&held)))
	return held
}

// cut delivers all that is in the pipe now, then takes the sink away. It waits for that.
func (p *pump) cut() {
	if p.file == nil {
		p.cutUnstarted()
		return
	}
	p.mu.Lock()
	if p.eof {
		p.sink = nil
		p.mu.Unlock()
		return
	}
	border := make(chan struct{})
	p.border = border
	p.mu.Unlock()
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	<-border
	p.mu.Lock()
	p.sink = nil
	p.mu.Unlock()
}

// cutUnstarted is cut for a pump that never ran: a short command costs no goroutine and no poll.
func (p *pump) cutUnstarted() {
	open := p.deliverHeld()
	p.sink = nil
	if open && !p.terminal {
		p.start() // somebody still holds the other end and must not block on a full pipe
		return
	}
	p.eof = true
	syscall.Close(p.fd)
}

// into gives the pump another sink; what came before goes to the old one or is thrown away.
func (p *pump) into(to sink) {
	p.cut()
	p.mu.Lock()
	p.sink = to
	p.mu.Unlock()
}
