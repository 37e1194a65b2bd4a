package main

import (
	"container/heap"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// bootNow is the time on the clock that counts suspend, in nanoseconds.
func bootNow() int64 {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return time.Now().UnixNano() // no known kernel lacks the clock
	}
	return ts.Nano()
}

// deadlines calls functions at points in boot time. One timerfd, set to the next of them: with
// nothing due, nothing runs.
type deadlines struct {
	mu    sync.Mutex
	queue deadlineHeap
	file  *os.File
	fd    uintptr
}

type deadline struct {
	at    int64
	index int // -1 once it fired or was stopped
	fire  func()
}

func newDeadlines() (*deadlines, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		return nil, errno
	}
	d := &deadlines{file: os.NewFile(fd, "timerfd"), fd: fd}
	go d.run()
	return d, nil
}

// at calls fire, in a goroutine of its own, once the boot time is reached.
func (d *deadlines) at(when int64, fire func()) *deadline {
	entry := &deadline{at: when, fire: fire}
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Push(&d.queue, entry)
	if entry.index == 0 {
		d.arm()
	}
	return entry
}

// after is at, counted from now.
func (d *deadlines) after(s float64, fire func()) *deadline {
	return d.at(bootNow()+nanoseconds(s), fire)
}

// stop takes a deadline back; one that fired already is left alone.
func (d *deadlines) stop(entry *deadline) {
	if entry == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry.index >= 0 {
		heap.Remove(&d.queue, entry.index)
		entry.index = -1
	}
}

func (d *deadlines) arm() {
	var spec [4]int64 // interval, then value: seconds and nanoseconds; zero disarms
	if len(d.queue) > 0 {
		at := max(d.queue[0].at, 1)
		spec[2], spec[3] = at/1e9, at%1e9
	}
	const absolute = 1
	syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, d.fd, absolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}

func (d *deadlines) run() {
	var ticks [8]byte
	for {
		if _, err := d.file.Read(ticks[:]); err != nil {
			return
		}
		d.fireDue()
	}
}

func (d *deadlines) fireDue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for now := bootNow(); len(d.queue) > 0 && d.queue[0].at <= now; {
		entry := heap.Pop(&d.queue).(*deadline)
		entry.index = -1
		go entry.fire()
	}
	d.arm()
}

// nanoseconds turns seconds into a duration that cannot overflow.
func nanoseconds(s float64) int64 {
	const most = 1e9 // seconds, 31 years
	return int64(min(max(s, 0), most) * 1e9)
}

type deadlineHeap []*deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *deadlineHeap) Push(x any) {
	entry := x.(*deadline)
	entry.index = len(*h)
	*h = append(*h, entry)
}

func (h *deadlineHeap) Pop() any {
	old := *h
	entry := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return entry
}
