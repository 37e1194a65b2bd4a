package main

import "syscall"

// signal sends a caller's signal to a command: KILL to the whole tree, others to the process group,
// or to the one in the foreground of its terminal.
// It reports whether the command still ran.
func (g *guest) signal(e *Exec, name string) (bool, *problem) {
	sig, p := parseSignal(name)
	if p != nil {
		return false, p
	}
	<-e.launched
	if sig == syscall.SIGKILL {
		return e.forceEnd(outcomeKilled), nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || (e.process != nil && isClosed(e.process.ended)) {
		return false, nil
	}
	e.signals |= 1 << uint(sig)
	if e.run != nil {
		return e.run.signal(sig), nil
	}
	group := e.process.pid
	if e.terminal != nil {
		group = e.terminal.foreground(group)
	}
	return syscall.Kill(-group, sig) == nil, nil
}

// killEverything kills all that is below the guest but the shims, which end by themselves. It reports
// whether all was dead within the grace.
func (t *processTable) killEverything() bool {
	return killAll(t.everyone, killDeadline())
}
