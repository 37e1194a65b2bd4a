package main

import (
	"os"
	"strconv"
	"syscall"
)

// execPipes are the two ends of a command's pipes, or our end of its terminal.
type execPipes struct {
	pumps  []*pump
	theirs []int // closed once the command has them
}

// nullFD is what commands without stdin read: shared, since it has no position. Set by reserve.
var nullFD = -1

// openPipes makes the pipes that the request asks for and writes their numbers into the launch.
func (g *guest) openPipes(e *Exec, r *execRequest, l *launch) (*execPipes, error) {
	if r.TTY != nil {
		return g.openTerminal(e, r, l)
	}
	pipes := &execPipes{}
	for which := range streamNames {
		fds, err := newPipe(0)
		if err != nil {
			pipes.closeTheirs()
			pipes.closeOurs(e)
			return nil, err
		}
		pipes.pumps = append(pipes.pumps, newPump(fds[0], e.outputSink(g, which)))
		pipes.theirs = append(pipes.theirs, fds[1])
		l.stdio[which+1] = uintptr(fds[1])
	}
	if r.Stdin == nil && !r.StdinOpen {
		l.stdio[0] = uintptr(nullFD)
		return pipes, nil
	}
	fds, err := newPipe(1)
	if err != nil {
		pipes.closeTheirs()
		pipes.closeOurs(e)
		return nil, err
	}
	pipes.theirs = append(pipes.theirs, fds[0])
	l.stdio[0] = uintptr(fds[0])
	e.stdin.open(fds[1], r.Stdin, r.StdinOpen)
	r.Stdin = nil // the request is kept while the command runs; this may be megabytes
	return pipes, nil
}

// newPipe makes a pipe of which the given end, ours, does not block.
func newPipe(ours int) (fds [2]int, err error) {
	if err = syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return fds, err
	}
	return fds, syscall.SetNonblock(fds[ours], true)
}

func (p *execPipes) closeTheirs() {
	for _, fd := range p.theirs {
		syscall.Close(fd)
	}
	p.theirs = nil
}

// closeOurs gives up on a command that did not start.
func (p *execPipes) closeOurs(e *Exec) {
	for _, pump := range p.pumps {
		syscall.Close(pump.fd)
	}
	e.stdin.end()
	e.terminal.close()
}

func (p *execPipes) start() {
	for _, pump := range p.pumps {
		pump.start()
	}
}

func (p *execPipes) cut() {
	for _, pump := range p.pumps {
		pump.cut()
	}
}

// raiseOOMScore makes a command a better victim than the guest. A command of root did it itself; one
// of a guest that is not root could not, since the guest's own files in /proc are root's.
func raiseOOMScore(pid int) {
	if os.Geteuid() == 0 {
		return
	}
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = syscall.Write(fd, []byte("500"))
	syscall.Close(fd)
}

func (e *Exec) outputSink(g *guest, which int) sink {
	return func(data []byte) {
		e.output.append(which, data)
		g.execs.grown()
	}
}
