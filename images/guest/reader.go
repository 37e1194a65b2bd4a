package main

import (
	"encoding/binary"
	"slices"
)

const (
	frameStdin   = 0
	frameStdout  = 1
	frameStderr  = 2
	frameJSON    = 3
	frameSend    = 4 // a message for a kernel
	frameMessage = 5 // one of a kernel

	frameHead    = 5
	pieceHead    = 16
	largestFrame = 1 << 20
	batchBytes   = 256 << 10
)

// reader is one attached reader's place in an output. Guarded by the output's lock.
type reader struct {
	next  int64    // number of the next piece it has not taken
	taken [2]int64 // offset per stream up to which it has taken, or does not want, bytes
	skip  [2]int64 // bytes before these offsets are not wanted
	gaps  [2]gap
}

// gap is a run of bytes that were not kept, not told yet.
type gap struct{ from, to int64 }

// gapNote is a frame that tells a gap; a reader that comes back with `after` = Seq misses nothing.
type gapNote struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Seq    int64  `json:"seq"`
}

// attachAfter adds a reader that goes on behind the piece numbered after.
func (o *output) attachAfter(after int64) *reader {
	r := &reader{next: max(after+1, 2)}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(r)
	return r
}

// attachAt adds a reader that wants the streams from these offsets on.
func (o *output) attachAt(offsets [2]int64) *reader {
	r := &reader{next: 2, skip: offsets}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(r)
	return r
}

func (o *output) add(r *reader) {
	r.taken = o.base
	if r.next < o.firstSeq {
		for which := range o.streams { // pieces before the journal are told as gaps
			// Of a reader that goes on behind a piece it is not known how much of this it has.
			r.lose(which, r.skip[which], o.base[which])
		}
		r.next = o.firstSeq
	}
	r.next = min(r.next, o.firstSeq+int64(len(o.journal)))
	for _, p := range o.journal[:r.next-o.firstSeq] {
		r.taken[p.which] = p.end
	}
	for which := range r.taken {
		r.taken[which] = max(r.taken[which], min(r.skip[which], o.streams[which].told))
	}
	if o.readers == nil {
		o.readers = map[*reader]struct{}{}
	}
	o.readers[r] = struct{}{}
}

func (o *output) detach(r *reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.readers, r)
	for which := range o.streams {
		o.streams[which].evict(o.needed(which))
	}
	o.recount()
	o.wake()
}

func (r *reader) lose(which int, from, to int64) {
	g := &r.gaps[which]
	if to <= from {
		return
	}
	if g.to == g.from {
		g.from = from
	}
	g.to = to
}

// take moves what is there for r into buffer as frames, up to batchBytes and a piece. Empty with
// changed set: wait for that; empty without: it has all, and there will be no more.
func (o *output) take(r *reader, buffer []byte) (frames []byte, changed chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames = buffer[:0]
	last := o.firstSeq + int64(len(o.journal))
	for r.next < last && len(frames) < batchBytes {
		frames = o.takePiece(r, frames)
	}
	if r.next == last {
		frames = r.tellGaps(frames, last-1)
	}
	if len(frames) > 0 {
		if len(o.readers) > 0 && o.changed != nil {
			o.wake() // a pump may wait for the room
		}
		return frames, nil
	}
	if o.closed {
		return nil, nil
	}
	return nil, o.change()
}

func (o *output) takePiece(r *reader, frames []byte) []byte {
	p := o.journal[r.next-o.firstSeq]
	s := &o.streams[p.which]
	which := int(p.which)
	for at := max(p.end-int64(p.n), r.skip[which]); at < p.end; {
		n, next := s.available(at)
		if n = min(n, p.end-at); n <= 0 {
			next = min(next, p.end)
			r.lose(which, at, next)
			at = next
			continue
		}
		frames = r.tellGaps(frames, r.next-1)
		frames = appendPiece(frames, s, which, r.next, at, int(n))
		at += n
	}
	r.taken[which] = max(r.taken[which], p.end)
	r.next++
	return frames
}

func appendPiece(frames []byte, s *stream, which int, seq, at int64, n int) []byte {
	frames = append(frames, byte(frameStdout+which))
	frames = binary.BigEndian.AppendUint32(frames, uint32(pieceHead+n))
	frames = binary.BigEndian.AppendUint64(frames, uint64(seq))
	frames = binary.BigEndian.AppendUint64(frames, uint64(at))
	start := len(frames)
	frames = slices.Grow(frames, n)[:start+n]
	return frames[:start+s.copyTo(frames[start:], at)]
}

// tellGaps adds the gaps that r has met; seq is the last piece that it is done with.
func (r *reader) tellGaps(frames []byte, seq int64) []byte {
	for which := range r.gaps {
		if g := &r.gaps[which]; g.to > g.from {
			note := gapNote{streamNames[which], g.from, g.to - g.from, seq}
			frames = appendJSON(frames, map[string]any{"gap": note})
			*g = gap{}
		}
	}
	return frames
}

// endSeq is the number of the end of the command.
func (o *output) endSeq() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.firstSeq + int64(len(o.journal))
}
