package main

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
)

// stdin is our end of a command's standard input. Bytes go straight into the pipe; what does not fit
// waits with its sender.
type stdin struct {
	turn   sync.Mutex // held by the one who writes
	first  []byte
	toEOF  bool // closed after first
	tty    *terminal
	inLine bool  // a terminal's line has begun
	eofAt  int64 // offset at which a terminal was told the end of file; -1 for none
	hasFD  bool
	file   *os.File
	mu     sync.Mutex // guards what follows
	taken  int64
	closed bool
	hungUp bool // its sender has ended it
}

const stdinChunk = 64 << 10

func (s *stdin) open(fd int, first *[]byte, keepOpen bool) {
	s.file = os.NewFile(uintptr(fd), "stdin")
	s.hasFD = true
	s.toEOF = !keepOpen
	if first != nil {
		s.first = *first
	}
}

// openTerminal makes the terminal the input: it stays open until the command ends.
func (s *stdin) openTerminal(t *terminal, first *[]byte) {
	s.file, s.hasFD, s.tty, s.eofAt = t.master, true, t, -1
	if first != nil {
		s.first = *first
	}
}

// begin writes what came with the request, once the command runs.
func (s *stdin) begin() {
	if !s.hasFD {
		return
	}
	s.turn.Lock()
	go func() {
		defer s.turn.Unlock()
		err := s.put(s.first)
		s.first = nil
		if s.toEOF {
			s.hangUp()
		}
		if err != nil {
			s.close()
		}
	}()
}

// put writes all of data into the pipe; the turn is held.
func (s *stdin) put(data []byte) error {
	for len(data) > 0 {
		n, err := s.file.Write(data[:min(len(data), stdinChunk)])
		s.mu.Lock()
		s.taken += int64(n)
		s.mu.Unlock()
		if err != nil {
			return goneOr(err)
		}
		s.inLine = data[n-1] != '\n' && data[n-1] != '\r'
		data = data[n:]
	}
	return nil
}

// finish ends the input as its sender means it: a pipe is closed, a terminal told the end of file.
func (s *stdin) finish() error {
	if s.tty == nil {
		s.hangUp()
		return nil
	}
	taken, closed := s.state()
	if closed {
		return nil
	}
	if _, err := s.file.Write(s.tty.endOfFile(s.inLine)); err != nil {
		return goneOr(err)
	}
	s.inLine, s.eofAt = false, taken
	return nil
}

// hangUp closes the input at its sender's wish.
func (s *stdin) hangUp() {
	s.mu.Lock()
	s.hungUp = true
	s.mu.Unlock()
	s.close()
}

// refused is err as the sender shall hear it: input that the command itself no longer reads is its doing.
func (e *Exec) refused(err error) error {
	p, is := err.(*problem)
	if !is || p.Code != "gone" {
		return err
	}
	e.stdin.mu.Lock()
	open := e.stdin.hasFD && !e.stdin.hungUp
	e.stdin.mu.Unlock()
	return p.blame(open && !e.endedByCaller())
}

func goneOr(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return fail("gone", "the command closed its standard input")
	}
	return err
}

// feed writes a body from the offset on, and closes the input after it if eof is set. Without an
// offset (-1) it goes behind what was taken. Returns the offset up to which bytes are taken.
//
// A body with an offset holds the turn only while it writes: its sender may be gone without a word, and
// whoever sends the same bytes again must not wait for him. One without holds it to its end.
func (s *stdin) feed(body io.Reader, offset int64, eof bool) (int64, error) {
	counted := offset >= 0
	s.turn.Lock() // what came with the request goes first
	taken, _ := s.state()
	if counted {
		s.turn.Unlock()
	} else {
		defer s.turn.Unlock()
	}
	if offset > taken {
		return taken, fail("conflict", "%d bytes are taken, the body begins at %d", taken, offset).with("offset", taken)
	}
	inTurn := func(do func() error) error {
		if counted {
			s.turn.Lock()
			defer s.turn.Unlock()
		}
		return do()
	}
	buffer := make([]byte, stdinChunk)
	for {
		n, err := body.Read(buffer)
		if putErr := inTurn(func() error { return s.add(buffer[:n], offset) }); putErr != nil {
			taken, _ = s.state()
			return taken, putErr
		}
		if counted {
			offset += int64(n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			taken, _ = s.state()
			return taken, fail("bad_request", "the body broke off: %v", err).with("offset", taken)
		}
	}
	var err error
	if eof {
		err = inTurn(func() error { return s.addEnd(counted) })
	}
	taken, _ = s.state()
	return taken, err
}

// add writes bytes that stand at offset (-1: behind what was taken); those taken already are skipped.
// The turn is held.
func (s *stdin) add(data []byte, offset int64) error {
	taken, closed := s.state()
	if offset >= 0 {
		data = data[min(taken-offset, int64(len(data))):]
	}
	if len(data) == 0 {
		return nil
	}
	if closed {
		return fail("gone", "the command's standard input is closed")
	}
	err := s.put(data)
	if err != nil {
		s.close()
	}
	return err
}

// addEnd ends the input. A terminal is told once at an offset, however often its sender asks. The turn
// is held.
func (s *stdin) addEnd(counted bool) error {
	if taken, _ := s.state(); s.tty != nil && counted && s.eofAt == taken {
		return nil
	}
	return s.finish()
}

func (s *stdin) state() (taken int64, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.closed || !s.hasFD
}

// close closes our end. Idempotent; a writer that waits is woken with an error.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasFD && !s.closed {
		s.closed = true
		s.file.Close()
	}
}

// end is close, for a command that is over.
func (s *stdin) end() { s.close() }
