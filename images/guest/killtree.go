package main

import (
	"os"
	"syscall"
	"time"
)

// killGrace is how long a tree may take to die before the whole sandbox is ended.
const killGrace = 5 * time.Second

// killTree ends everything below the shim of p, and reports whether it is dead by the deadline.
//
// Without cgroups a tree is found by its parents: stop all of it until a look finds nobody new, so
// that nobody forks away between look and kill, then kill, then look again.
// Where the command killed its own shim its processes fell to the guest; then those that belong to no
// living shim are killed too: whose they are cannot be known any more.
func (t *processTable) killTree(p *process, deadline time.Time) bool {
	return killAll(func() []int { return t.members(p) }, deadline)
}

func (t *processTable) members(p *process) []int {
	table := scanProcesses()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.shimGone {
		return table.below(map[int]bool{p.shimPID: true})
	}
	if !p.orphaned {
		return nil
	}
	orphans := t.orphans(table)
	roots := make(map[int]bool, len(orphans))
	for _, pid := range orphans {
		roots[pid] = true
	}
	return append(orphans, table.below(roots)...)
}

// killAll stops, then kills, what members lists, until it lists nobody.
func killAll(members func() []int, deadline time.Time) bool {
	stopped := map[int]bool{}
	pause := 200 * time.Microsecond
	for {
		found := members()
		if len(found) == 0 {
			return true
		}
		fresh := 0
		for _, pid := range found {
			if !stopped[pid] {
				stopped[pid] = true
				fresh++
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if fresh > 0 && time.Now().Before(deadline) {
			continue
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause) // the kernel needs a moment to end them; no event tells when all are gone
		pause = min(2*pause, 20*time.Millisecond)
	}
}

func killDeadline() time.Time { return time.Now().Add(killGrace) }

// everyone is every process below the guest that is no shim.
func (t *processTable) everyone() []int {
	table := scanProcesses()
	all := table.below(map[int]bool{os.Getpid(): true})
	t.mu.Lock()
	defer t.mu.Unlock()
	found := all[:0]
	for _, pid := range all {
		if t.byShim[pid] == nil {
			found = append(found, pid)
		}
	}
	return found
}
