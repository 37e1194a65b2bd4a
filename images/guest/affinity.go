package main

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// affinity is the part of a claim that says on which processors commands run: count of those that the
// guest may use, in their order, from the first-th on and round.
type affinity struct {
	Count int `json:"count"`
	First int `json:"first"`
}

// cpuMask is a set of processors as the kernel takes it.
type cpuMask struct {
	bits [128]uint64
	size uintptr // of what the kernel uses of it, in bytes
}

func (a *affinity) check() *problem {
	if a != nil && (a.Count < 1 || a.First < 0) {
		return fail("bad_request", "affinity: count is below 1 or first below 0")
	}
	return nil
}

// within chooses of what is allowed; nil where that leaves nothing to choose.
func (a *affinity) within(allowed *cpuMask) *cpuMask {
	if a == nil || allowed == nil {
		return nil
	}
	numbers := allowed.numbers()
	n := len(numbers)
	if a.Count >= n {
		return nil
	}
	chosen := &cpuMask{size: allowed.size}
	for i := range a.Count {
		number := numbers[(a.First%n+i)%n]
		chosen.bits[number/64] |= 1 << (number % 64)
	}
	return chosen
}

func (m *cpuMask) numbers() (numbers []int) {
	for number := range len(m.bits) * 64 {
		if m.bits[number/64]&(1<<(number%64)) != 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// ownProcessors are those that the guest may run on; nil where the kernel does not say.
func ownProcessors() *cpuMask {
	m := new(cpuMask)
	size, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0,
		unsafe.Sizeof(m.bits), uintptr(unsafe.Pointer(&m.bits)))
	if errno != 0 {
		return nil
	}
	m.size = size
	return m
}

// mostLooks bounds how often a tree that grows all the time is looked at.
const mostLooks = 20

// move has all that commands have left running go on there, until a look finds nobody new: what
// starts of them from then on is there already. Another user's processes stay where they are if the
// guest lacks the right to move them.
func (t *processTable) move(to *cpuMask) {
	if to == nil || !t.anyEver() {
		return
	}
	moved := map[int]bool{}
	for range mostLooks {
		fresh := false
		for _, pid := range t.everyone() {
			for _, tid := range threadsOf(pid) {
				if !moved[tid] {
					moved[tid], fresh = true, true
					_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid),
						to.size, uintptr(unsafe.Pointer(&to.bits)))
				}
			}
		}
		if !fresh {
			return
		}
	}
}

func threadsOf(pid int) (tids []int) {
	entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// anyEver says whether a command was ever started.
func (t *processTable) anyEver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.serial > 0
}
