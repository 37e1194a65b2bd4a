package main

import (
	"sync"
	"sync/atomic"
)

const (
	mostKeptBytes = 64 << 20
	mostEnded     = 10_000
	mostRunning   = 2048
)

// execTable is every command of the sandbox, running or ended, oldest first.
type execTable struct {
	guest *guest
	kept  atomic.Int64 // bytes of output in memory, of all commands
	// boundAt is what kept must exceed for the bound to be looked at again.
	boundAt atomic.Int64

	mu        sync.Mutex
	byID      map[string]*Exec
	order     []*Exec
	running   int
	standing  int   // of those, that run for whoever may want them: by themselves they are no use of the box
	lastEnded int64 // boot time
}

func newExecTable(g *guest) *execTable {
	t := &execTable{guest: g, byID: map[string]*Exec{}}
	t.boundAt.Store(mostKeptBytes)
	return t
}

func (t *execTable) find(id string) (*Exec, *problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byID[id]; e != nil {
		return e, nil
	}
	return nil, fail("not_found", "there is no command %q", id)
}

// claimID enters a command under its id. fresh is false when there is one already: attach to that.
func (t *execTable) claimID(id, fingerprint string, standing bool) (e *Exec, fresh bool, p *problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e = t.byID[id]; e != nil {
		if e.fingerprint != fingerprint {
			return nil, false, fail("conflict", "exec_id %q belongs to another command", id)
		}
		return e, false, nil
	}
	if t.running >= mostRunning {
		return nil, false, fail("busy", "%d commands run", t.running)
	}
	e = newExec(id, fingerprint)
	t.byID[id] = e
	t.order = append(t.order, e)
	t.running++
	if e.standing = standing; standing {
		t.standing++
	}
	return e, true, nil
}

// ended notes that a command's record is complete, and keeps the bounds.
func (t *execTable) ended(e *Exec) {
	t.guest.trim.plan()
	if e.apart {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if e.standing {
		t.standing--
	}
	t.lastEnded = bootNow()
	for len(t.order)-t.running > mostEnded && t.forgetOldest() {
	}
	t.bound()
}

// forgetOldest removes the oldest ended record.
func (t *execTable) forgetOldest() bool {
	for i, e := range t.order {
		if !e.isEnded() {
			continue
		}
		e.output.dropText()
		delete(t.byID, e.id)
		if i == 0 {
			t.order[0] = nil
			t.order = t.order[1:]
		} else {
			t.order = append(t.order[:i], t.order[i+1:]...)
		}
		return true
	}
	return false
}

// forgetEnded removes every record; false, and none of them, while a command runs.
func (t *execTable) forgetEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running > 0 {
		return false
	}
	for t.forgetOldest() {
	}
	return true
}

// boundStep is how much more must be kept before a bound that could not be held is tried again.
const boundStep = 1 << 20

// bound takes text from the oldest ended commands while all together hold too much. The lock is held.
func (t *execTable) bound() {
	defer func() {
		now := t.kept.Load()
		if t.boundAt.Store(mostKeptBytes); now > mostKeptBytes {
			t.boundAt.Store(now + boundStep)
		}
	}()
	if t.kept.Load() <= mostKeptBytes {
		return
	}
	for _, e := range t.order {
		if e.isEnded() {
			e.output.dropText()
		}
		if t.kept.Load() <= mostKeptBytes {
			return
		}
	}
	for _, e := range t.order {
		if !e.isEnded() {
			e.output.shrink()
		}
	}
}

// grown is called while commands write: the bound holds then too.
func (t *execTable) grown() {
	if t.kept.Load() <= t.boundAt.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bound()
}

// newestFirst is a snapshot of all commands.
func (t *execTable) newestFirst() []*Exec {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*Exec, len(t.order))
	for i, e := range t.order {
		list[len(list)-1-i] = e
	}
	return list
}

// idle says how many commands are at work, and since when none is.
func (t *execTable) idle() (running int, lastEnded int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running - t.standing, t.lastEnded
}

func (e *Exec) isEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}
