package main

import (
	"sync"
	"sync/atomic"
)

const (
	stdout = 0
	stderr = 1

	// mostPieces bounds the journal of a command; of older pieces only the bytes are still known.
	mostPieces = 1 << 16
	pieceBytes = 16
)

var streamNames = [2]string{"stdout", "stderr"}

// piece is what was read at once from a stream: the n bytes that end at offset end.
type piece struct {
	end   int64
	n     int32
	which int32
}

// output is what a command wrote: two bounded streams, and the journal of the order in which their
// pieces were read. The piece at journal[i] has the number firstSeq+i; 1 is the start of the command.
type output struct {
	mu       sync.Mutex
	streams  [2]stream
	journal  []piece
	firstSeq int64
	base     [2]int64 // offset per stream at which the journal begins
	readers  map[*reader]struct{}
	hurry    bool // nothing is held back for readers any more
	closed   bool // nothing will be appended any more
	dropped  bool // text was lost to the sandbox's bound
	counted  int64
	budget   *atomic.Int64
	changed  chan struct{} // closed at the next change; nil while nobody waits
}

func (o *output) open(limit int64, budget *atomic.Int64) {
	o.streams = [2]stream{newStream(limit), newStream(limit)}
	o.firstSeq = 2
	o.budget = budget
}

// append takes what was read from a stream, and waits while that would throw away what an attached
// reader has not taken.
func (o *output) append(which int, data []byte) {
	if len(data) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.streams[which]
	for !o.hurry && len(o.readers) > 0 && o.mustWait(s, which, len(data)) {
		o.waitChange()
	}
	if o.closed {
		return
	}
	s.append(data)
	o.note(s, which, data)
	s.evict(o.needed(which))
	o.recount()
	o.wake()
}

func (o *output) mustWait(s *stream, which, n int) bool {
	if len(o.journal) >= mostPieces && o.oldestWanted() <= o.firstSeq {
		return true
	}
	if !s.over(n) {
		return false
	}
	s.evict(o.needed(which))
	return s.over(n) && o.needed(which) < s.total
}

// note writes a piece to the journal, cut before an incomplete character.
func (o *output) note(s *stream, which int, data []byte) {
	end := data
	if len(data) < 3 && len(s.pending) > 0 {
		end = append(s.pending[:len(s.pending):len(s.pending)], data...)
	}
	cut := incomplete(end)
	o.addPiece(s, which, s.total-int64(cut))
	s.pending = append(s.pending[:0], end[len(end)-cut:]...)
}

func (o *output) addPiece(s *stream, which int, end int64) {
	for end > s.told {
		n := min(end-s.told, 1<<19)
		s.told += n
		if len(o.journal) >= mostPieces {
			o.forgetPieces(mostPieces / 16)
		}
		o.journal = append(o.journal, piece{end: s.told, n: int32(n), which: int32(which)})
	}
}

// forgetPieces shortens the journal at its old end, as far as readers let it.
func (o *output) forgetPieces(n int) {
	n = int(min(int64(n), o.oldestWanted()-o.firstSeq))
	if n = min(n, len(o.journal)); n <= 0 {
		return
	}
	for _, p := range o.journal[:n] {
		o.base[p.which] = p.end
	}
	o.journal = o.journal[:copy(o.journal, o.journal[n:])]
	o.firstSeq += int64(n)
}

// needed is the first offset of a stream that an attached reader still wants.
func (o *output) needed(which int) int64 {
	least := o.streams[which].total
	for r := range o.readers {
		least = min(least, r.taken[which])
	}
	return least
}

func (o *output) oldestWanted() int64 {
	least := o.firstSeq + int64(len(o.journal))
	for r := range o.readers {
		least = min(least, r.next)
	}
	return least
}

// finish ends both streams: incomplete characters become pieces, and nothing follows.
func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for which := range o.streams {
		s := &o.streams[which]
		o.addPiece(s, which, s.total)
		s.pending = nil
		s.trim()
	}
	o.closed = true
	if cap(o.journal) > 2*len(o.journal) {
		o.journal = append([]piece(nil), o.journal...)
	}
	o.recount()
	o.wake()
}

// hurryUp stops holding the pipes back for readers.
func (o *output) hurryUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hurry = true
	o.wake()
}

// dropText forgets the bytes for the sake of the sandbox's bound, and says how many were freed.
func (o *output) dropText() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.readers) > 0 {
		return 0
	}
	for which := range o.streams {
		s := &o.streams[which]
		o.dropped = o.dropped || s.held() > 0
		s.drop()
		s.told = s.total
		o.base[which] = s.total
	}
	o.firstSeq += int64(len(o.journal))
	o.journal = nil
	before := o.counted
	o.recount()
	return before - o.counted
}

// shrink makes a running command keep no more than it has, when the sandbox's bound is reached and
// no ended command has text to give.
func (o *output) shrink() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for which := range o.streams {
		s := &o.streams[which]
		s.headCap = min(s.headCap, int64(len(s.head)))
		s.tailCap = min(s.tailCap, largestChunk)
		s.evict(o.needed(which))
	}
	o.recount()
}

func (o *output) recount() {
	now := o.streams[0].held() + o.streams[1].held() + int64(len(o.journal))*pieceBytes
	if o.budget != nil {
		o.budget.Add(now - o.counted)
	}
	o.counted = now
}

// wake tells all who wait that something changed. The lock is held.
func (o *output) wake() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// change is closed at the next change. The lock is held.
func (o *output) change() chan struct{} {
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

func (o *output) waitChange() {
	changed := o.change()
	o.mu.Unlock()
	<-changed
	o.mu.Lock()
}

// kept is one stream's part of an Exec.
type kept struct {
	Bytes int64  `json:"bytes"`
	Head  []byte `json:"head_b64"`
	Tail  []byte `json:"tail_b64"`
	Gap   int64  `json:"gap_bytes"`
}

type keptCount struct {
	Bytes int64 `json:"bytes"`
	Gap   int64 `json:"gap_bytes"`
}

func (o *output) kept(which int) kept {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.streams[which]
	k := kept{Bytes: s.total, Head: []byte{}, Tail: []byte{}}
	head, tail := s.gap()
	if tail <= head {
		k.Head = make([]byte, s.total)
		s.copyTo(k.Head, 0)
		return k
	}
	k.Head = append(k.Head, s.head...)
	k.Tail = make([]byte, s.total-tail)
	s.copyTo(k.Tail, tail)
	k.Gap = tail - head
	return k
}

// gap is what is not kept: from the end of the head to the start of the tail, if that lies behind it.
func (s *stream) gap() (from, to int64) { return int64(len(s.head)), s.keptTailFrom() }

func (o *output) count(which int) keptCount {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.streams[which]
	head, tail := s.gap()
	return keptCount{Bytes: s.total, Gap: max(0, tail-head)}
}
