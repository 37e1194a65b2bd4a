package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// readerPatience is how long a reader may take nothing before it is dropped.
const readerPatience = 30 * time.Second

const (
	upgradeFrames = "sandbox-frames"
	framesFollow  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgradeFrames + "\r\n\r\n"
)

func wantsFrames(r *http.Request) *problem {
	if !strings.EqualFold(r.Header.Get("Upgrade"), upgradeFrames) {
		return fail("bad_request", "attach needs Upgrade: %s", upgradeFrames)
	}
	return nil
}

// takeOverForFrames takes the connection out of HTTP's hands. Its caller says framesFollow, and closes it.
func takeOverForFrames(w http.ResponseWriter) (net.Conn, *bufio.Reader, *problem) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, fail("internal", "the connection cannot be taken over: %v", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, buffered.Reader, nil
}

// attach turns the connection into frames both ways: output from where the reader left off, then live.
func (g *guest) attach(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	after := q.number("after", 0)
	offsets := [2]int64{q.number("stdout", 0), q.number("stderr", 0)}
	if q.failed != nil {
		return q.failed
	}
	if p := wantsFrames(r); p != nil {
		return p
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	<-e.launched
	conn, from, p := takeOverForFrames(w)
	if p != nil {
		return p
	}
	defer conn.Close()
	out := &frameWriter{conn, readerPatience}
	hello := []byte(framesFollow)
	if after == 0 {
		started := map[string]any{"seq": 1, "started_at": unixSeconds(e.startedAt)}
		hello = appendJSON(hello, map[string]any{"started": started})
	}
	if out.write(hello) != nil {
		return nil
	}
	var place *reader
	if after > 0 {
		place = e.output.attachAfter(after)
	} else {
		place = e.output.attachAt(offsets)
	}
	defer e.output.detach(place)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		g.takeFrames(e, from)
	}()
	e.sendFrames(out, place, gone)
	return nil
}

// sendFrames sends output as it comes, and at last the record.
func (e *Exec) sendFrames(out *frameWriter, place *reader, gone <-chan struct{}) {
	var frames []byte
	for {
		var changed chan struct{}
		frames, changed = e.output.take(place, frames)
		switch {
		case len(frames) > 0:
			if out.write(frames) != nil {
				return
			}
		case changed != nil:
			select {
			case <-changed:
			case <-gone:
				return
			}
		default:
			<-e.done
			ended := map[string]any{"seq": e.output.endSeq(), "exec": e.view(false)}
			_ = out.write(appendJSON(nil, map[string]any{"ended": ended}))
			return
		}
	}
}

// takeFrames takes what the reader sends, until it hangs up.
func (g *guest) takeFrames(e *Exec, from *bufio.Reader) {
	buffer := make([]byte, 0, 4096)
	for {
		kind, payload, err := readFrame(from, buffer)
		if err != nil {
			return
		}
		buffer = payload[:0]
		switch kind {
		case frameStdin:
			e.stdin.takeFrame(payload)
		case frameJSON:
			var order struct {
				Signal string        `json:"signal"`
				Resize *terminalSize `json:"resize"`
			}
			if json.Unmarshal(payload, &order) != nil {
				continue
			}
			if order.Signal != "" {
				_, _ = g.signal(e, order.Signal)
			}
			if order.Resize != nil && order.Resize.check() == nil {
				_ = e.resize(*order.Resize)
			}
		}
	}
}

// takeFrame writes a stdin frame; an empty one is the end of the input. What a command that closed
// its input did not want is thrown away, as a terminal would.
func (s *stdin) takeFrame(data []byte) {
	s.turn.Lock()
	defer s.turn.Unlock()
	if _, closed := s.state(); closed {
		return
	}
	var err error
	if len(data) == 0 {
		err = s.finish()
	} else {
		err = s.put(data)
	}
	if err != nil {
		s.close()
	}
}

// frameWriter writes to a reader that must take something every readerPatience.
type frameWriter struct {
	conn     net.Conn
	patience time.Duration
}

// sharedWriter is one that several write to.
type sharedWriter struct {
	turn sync.Mutex
	to   frameWriter
}

func (w *sharedWriter) write(data []byte) error {
	w.turn.Lock()
	defer w.turn.Unlock()
	return w.to.write(data)
}

func (w *frameWriter) write(data []byte) error {
	for len(data) > 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.patience))
		n, err := w.conn.Write(data)
		data = data[n:]
		if err != nil && !(n > 0 && errors.Is(err, os.ErrDeadlineExceeded)) {
			return err
		}
	}
	return nil
}
