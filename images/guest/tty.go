package main

import (
	"net/http"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Requests of ioctl, the same on both processors. syscall has none of them.
const (
	ioctlGetTermios    = 0x5401
	ioctlSetTermios    = 0x5402
	ioctlTakeTerminal  = 0x540E // TIOCSCTTY
	ioctlForeground    = 0x540F // TIOCGPGRP
	ioctlSetSize       = 0x5414 // TIOCSWINSZ
	ioctlTerminalIndex = 0x80045430
	ioctlUnlock        = 0x40045431
	ioctlOpenPeer      = 0x5441 // TIOCGPTPEER
	termiosUTF8        = 0x4000 // IUTF8: rubbing out takes a whole character
)

const largestSide = 1<<16 - 1

// terminalSize is the size of a terminal in characters.
type terminalSize struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

func (s *terminalSize) check() *problem {
	if s.Rows < 1 || s.Rows > largestSide || s.Cols < 1 || s.Cols > largestSide {
		return fail("bad_request", "rows and cols are from 1 to %d", largestSide)
	}
	return nil
}

// terminalEnv is what a command on a terminal finds in its environment below the claim's.
func (r *execRequest) terminalEnv() layer {
	if r.TTY == nil {
		return nil
	}
	return layer{"TERM": "xterm-256color"}
}

// terminal is a command's pseudo-terminal. We keep the command's side open as well: a master of which
// nobody has the other side reads as at its end, though a command may close its side and open it again.
type terminal struct {
	master, slave *os.File
}

// openTerminal makes a terminal of the sandbox's own in the request's size and makes it the command's
// three descriptors. Its user may open it by its name.
func (g *guest) openTerminal(e *Exec, r *execRequest, l *launch) (*execPipes, error) {
	master, err := openMaster()
	if err != nil {
		return nil, err
	}
	slave, err := openSlave(master)
	if err != nil {
		syscall.Close(master)
		return nil, err
	}
	reading, err := duplicate(master)
	if err != nil {
		syscall.Close(slave)
		syscall.Close(master)
		return nil, err
	}
	if l.setUser {
		_ = syscall.Fchown(slave, int(l.uid), -1) // without the right to it, only opening it by name fails
	}
	t := &terminal{master: os.NewFile(uintptr(master), "terminal"), slave: os.NewFile(uintptr(slave), "terminal")}
	t.prepare(*r.TTY)
	e.terminal = t
	e.stdin.openTerminal(t, r.Stdin)
	r.Stdin = nil
	l.tty = true
	l.stdio = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	return &execPipes{pumps: []*pump{newTerminalPump(reading, e.outputSink(g, stdout))}}, nil
}

func openMaster() (fd int, err error) {
	for _, path := range []string{"/dev/ptmx", "/dev/pts/ptmx"} {
		fd, err = syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err == nil || err == syscall.ENOSPC {
			break
		}
	}
	if err != nil {
		return -1, err
	}
	var locked int32
	if err := ioctl(uintptr(fd), ioctlUnlock, unsafe.Pointer(&locked)); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openSlave opens the other side: by the master itself, for a name could lead elsewhere, and by its
// name where the kernel does not know how.
func openSlave(master int) (int, error) {
	const flags = syscall.O_RDWR | syscall.O_NOCTTY | syscall.O_CLOEXEC
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), ioctlOpenPeer, flags)
	if errno == 0 {
		return int(fd), nil
	}
	var index uint32
	if err := ioctl(uintptr(master), ioctlTerminalIndex, unsafe.Pointer(&index)); err != nil {
		return -1, err
	}
	return syscall.Open("/dev/pts/"+strconv.Itoa(int(index)), flags, 0)
}

func duplicate(fd int) (int, error) {
	twin, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, firstFreeFD)
	if errno != 0 {
		return -1, errno
	}
	return int(twin), nil
}

func ioctl(fd, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// control runs an ioctl, unless the file is closed.
func control(file *os.File, request uintptr, argument unsafe.Pointer) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = ioctl(fd, request, argument) })
	if failed != nil {
		return failed
	}
	return err
}

func (t *terminal) prepare(size terminalSize) {
	_ = t.resize(size)
	var settings syscall.Termios
	if control(t.slave, ioctlGetTermios, unsafe.Pointer(&settings)) == nil {
		settings.Iflag |= termiosUTF8
		_ = control(t.slave, ioctlSetTermios, unsafe.Pointer(&settings))
	}
}

// resize sets the size; the kernel tells who has the terminal's foreground.
func (t *terminal) resize(size terminalSize) error {
	wanted := [4]uint16{uint16(size.Rows), uint16(size.Cols)}
	return control(t.slave, ioctlSetSize, unsafe.Pointer(&wanted))
}

// foreground is the process group in the terminal's foreground, and otherwise where it has none.
func (t *terminal) foreground(otherwise int) int {
	var group int32
	if err := control(t.master, ioctlForeground, unsafe.Pointer(&group)); err != nil || group <= 1 {
		return otherwise
	}
	return int(group)
}

// endOfFile is what a user would type to end the input: in a line that has begun the first one only
// hands over what is there.
func (t *terminal) endOfFile(inLine bool) []byte {
	var settings syscall.Termios
	if control(t.slave, ioctlGetTermios, unsafe.Pointer(&settings)) != nil {
		return nil
	}
	end := settings.Cc[syscall.VEOF]
	switch {
	case end == 0: // switched off
		return nil
	case inLine && settings.Lflag&syscall.ICANON != 0:
		return []byte{end, end}
	}
	return []byte{end}
}

// close hangs up: who still has the terminal reads its end from now on.
func (t *terminal) close() {
	if t != nil {
		t.master.Close()
		t.slave.Close()
	}
}

// resize sets the size of a command's terminal.
func (e *Exec) resize(size terminalSize) *problem {
	<-e.launched
	switch {
	case e.isEnded():
		return fail("gone", "the command ended").blame(!e.endedByCaller())
	case e.terminal == nil:
		return fail("conflict", "the command has no terminal")
	case e.terminal.resize(size) != nil:
		return fail("gone", "the command ended").blame(!e.endedByCaller())
	}
	return nil
}

func (g *guest) postResize(w http.ResponseWriter, r *http.Request) error {
	var size terminalSize
	if err := readJSON(w, r, &size); err != nil {
		return err
	}
	if p := size.check(); p != nil {
		return p
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	if p := e.resize(size); p != nil {
		return p
	}
	writeJSON(w, 200, struct{}{})
	return nil
}
