package main

import "testing"

// A command that kills its shims at once has commands that begin and end without them; the guest once
// looked into the launch of one that had ended, which was given back by then, and died of it.
func TestWhatEndedIsNotLookedForAmongThoseThatToldNothing(t *testing.T) {
	gone := &process{launch: &launch{pid: 7}, started: make(chan struct{}), ended: make(chan struct{}), shimGone: true}
	table := &processTable{
		byShim: map[int]*process{}, byMain: map[int]*process{},
		limbo: map[*process]struct{}{gone: {}},
	}
	table.settle(gone, false)
	if found := table.untold(8); found != nil {
		t.Errorf("found %v", found)
	}
}
