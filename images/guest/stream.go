package main

import "sync"

const (
	largestChunk  = 64 << 10
	smallestChunk = 4 << 10
	// readerSlack is how far a stream may hold more than its limit for an attached reader, before the
	// pipe is held back.
	readerSlack = 256 << 10
)

var chunkPool = sync.Pool{New: func() any { return new([largestChunk]byte) }}

// stream keeps the first and the last bytes of one output stream. It is guarded by its output's lock.
//
// The head grows up to headCap; what comes after goes into the chunks of the tail, whose oldest are
// dropped once they lie outside the last tailCap bytes.
type stream struct {
	headCap, tailCap int64
	total            int64 // bytes ever appended
	head             []byte
	chunks           [][]byte
	tailFrom         int64 // offset of the first byte of chunks
	pending          []byte
	told             int64 // bytes that pieces of the journal cover
}

func newStream(limit int64) stream {
	return stream{headCap: limit - limit/2, tailCap: limit / 2}
}

// held is how many bytes are in memory.
func (s *stream) held() int64 {
	return int64(len(s.head)) + s.total - max(s.tailFrom, int64(len(s.head)))
}

// append takes all of data, without regard to limits; evict follows.
func (s *stream) append(data []byte) {
	s.total += int64(len(data))
	if room := s.headCap - int64(len(s.head)); room > 0 && len(s.chunks) == 0 {
		n := min(int(room), len(data))
		s.head = append(s.head, data[:n]...)
		data = data[n:]
		s.tailFrom = int64(len(s.head))
	}
	for len(data) > 0 {
		last := len(s.chunks) - 1
		if last < 0 || len(s.chunks[last]) == cap(s.chunks[last]) {
			s.chunks = append(s.chunks, s.newChunk(len(data)))
			last++
		}
		chunk := s.chunks[last]
		n := min(len(data), cap(chunk)-len(chunk))
		s.chunks[last] = append(chunk, data[:n]...)
		data = data[n:]
	}
}

func (s *stream) newChunk(atLeast int) []byte {
	size := smallestChunk
	if n := len(s.chunks); n > 0 {
		size = 4 * cap(s.chunks[n-1])
	}
	if size = max(size, atLeast); size < largestChunk {
		return make([]byte, 0, size)
	}
	return chunkPool.Get().(*[largestChunk]byte)[:0]
}

func (s *stream) recycle(chunk []byte) {
	if cap(chunk) == largestChunk {
		chunkPool.Put((*[largestChunk]byte)(chunk[:largestChunk]))
	}
}

// evict drops the chunks that lie before the last tailCap bytes and before needed, the first offset
// that a reader still wants.
func (s *stream) evict(needed int64) {
	keepFrom := min(s.total-s.tailCap, needed)
	for len(s.chunks) > 0 {
		end := s.tailFrom + int64(len(s.chunks[0]))
		if end > keepFrom {
			return
		}
		s.recycle(s.chunks[0])
		s.chunks[0] = nil
		s.chunks = s.chunks[1:]
		s.tailFrom = end
	}
}

// over says whether n more bytes would make the tail larger than limit and slack allow.
func (s *stream) over(n int) bool {
	return s.total-s.tailFrom+int64(n) > s.tailCap+readerSlack
}

// keptTailFrom is the offset at which the kept tail begins.
func (s *stream) keptTailFrom() int64 { return max(s.tailFrom, s.total-s.tailCap) }

// ranges lists what is kept as [from, to) pairs, in order, none empty.
func (s *stream) ranges() [][2]int64 {
	head, tail := int64(len(s.head)), s.keptTailFrom()
	kept := [][2]int64{}
	switch {
	case tail <= head && s.total > 0:
		kept = append(kept, [2]int64{0, s.total})
	default:
		if head > 0 {
			kept = append(kept, [2]int64{0, head})
		}
		if s.total > tail {
			kept = append(kept, [2]int64{tail, s.total})
		}
	}
	return kept
}

// available says how many bytes from offset on are in memory without a gap, and if none, at which
// offset the next ones are.
func (s *stream) available(offset int64) (n, next int64) {
	head := int64(len(s.head))
	switch {
	case offset >= s.tailFrom:
		return s.total - offset, s.total
	case offset < head && s.tailFrom <= head:
		return s.total - offset, s.total
	case offset < head:
		return head - offset, head
	default:
		return 0, s.tailFrom
	}
}

// copyTo fills as much of buffer as is in memory from offset on.
func (s *stream) copyTo(buffer []byte, offset int64) int {
	n := 0
	if offset < int64(len(s.head)) {
		n = copy(buffer, s.head[offset:])
		offset += int64(n)
	}
	if offset < s.tailFrom {
		return n
	}
	at := s.tailFrom
	for _, chunk := range s.chunks {
		if n == len(buffer) {
			break
		}
		if end := at + int64(len(chunk)); offset < end {
			m := copy(buffer[n:], chunk[offset-at:])
			n += m
			offset += int64(m)
		}
		at += int64(len(chunk))
	}
	return n
}

// drop forgets all bytes; the counts stay.
func (s *stream) drop() {
	for _, chunk := range s.chunks {
		s.recycle(chunk)
	}
	s.head, s.chunks, s.tailFrom, s.headCap, s.tailCap = nil, nil, s.total, 0, 0
}

// trim gives back memory that a finished stream does not need.
func (s *stream) trim() {
	if cap(s.head)-len(s.head) > smallestChunk {
		s.head = append(make([]byte, 0, len(s.head)), s.head...)
	}
	s.chunks = append([][]byte(nil), s.chunks...)
}

// incomplete is how many bytes at the end of data begin a UTF-8 character whose rest is missing.
func incomplete(data []byte) int {
	for back := 1; back <= 3 && back <= len(data); back++ {
		b := data[len(data)-back]
		if b < 0x80 {
			return 0
		}
		if b < 0xC0 {
			continue // a continuation byte: its lead lies further back
		}
		length := 0
		switch {
		case b >= 0xF0 && b < 0xF5:
			length = 4
		case b >= 0xE0 && b < 0xF0:
			length = 3
		case b >= 0xC2 && b < 0xE0:
			length = 2
		}
		if length > back {
			return back
		}
		return 0
	}
	return 0
}
