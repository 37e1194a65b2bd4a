package main

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// fileSlots bounds how many file calls are inside the kernel at once, and with them how many threads
// the runtime may have to start: in a full pids limit it could not, and would die.
var fileSlots = make(chan struct{}, 8)

// as runs do with the file rights of a user: on a thread whose ids for file access and groups are
// his. do must not wait for the network.
func as(who account, do func() error) error {
	fileSlots <- struct{}{}
	defer func() { <-fileSlots }()
	if !who.switched {
		return do()
	}
	runtime.LockOSThread()
	back, err := takeRights(who)
	if err != nil {
		if back() {
			runtime.UnlockOSThread()
		}
		return err
	}
	defer func() {
		if back() {
			runtime.UnlockOSThread()
		} // else the thread ends with its goroutine, and its rights with it
	}()
	return do()
}

// takeRights changes the thread's file ids. back undoes it and reports whether it is all undone.
func takeRights(who account) (back func() bool, err error) {
	uid, gid := os.Geteuid(), os.Getegid()
	groups, err := syscall.Getgroups()
	if err != nil {
		return func() bool { return true }, err
	}
	back = func() bool {
		return setFileID(sysSetfsuid, uid) && setFileID(sysSetfsgid, gid) && setThreadGroups(toIDs(groups))
	}
	if !setThreadGroups(who.groups) || !setFileID(sysSetfsgid, who.gid) || !setFileID(sysSetfsuid, who.uid) {
		return back, fail("file_forbidden", "the guest may not act as user %q", who.name)
	}
	return back, nil
}

// setFileID sets and reads back: the call itself never fails.
func setFileID(trap uintptr, id int) bool {
	syscall.RawSyscall(trap, uintptr(id), 0, 0)
	now, _, _ := syscall.RawSyscall(trap, uintptr(id), 0, 0)
	return int(now) == id
}

func setThreadGroups(groups []uint32) bool {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
	return errno == 0
}

func toIDs(groups []int) []uint32 {
	ids := make([]uint32, len(groups))
	for i, g := range groups {
		ids[i] = uint32(g)
	}
	return ids
}
