package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"testing"
	"time"
)

var bash = []string{"bash", "--norc", "--noprofile"}

// onTerminal are the fields of a command on a terminal of that size.
func onTerminal(rows, cols int, extra ...fields) fields {
	all := fields{"tty": fields{"rows": rows, "cols": cols}, "env": fields{"PS1": "$ ", "HISTFILE": "/dev/null"}}
	for _, more := range extra {
		for name, value := range more {
			all[name] = value
		}
	}
	return all
}

// screen is a reader of a command's terminal that remembers all it has read.
type screen struct {
	*attachment
	text []byte
	end  *execRecord
}

func (g *testGuest) screen(id string) *screen {
	g.t.Helper()
	return &screen{attachment: g.attach(id, "")}
}

// await reads until the text has come behind what was awaited before, or the command ends.
func (s *screen) await(want string) {
	s.t.Helper()
	for {
		if at := bytes.Index(s.text, []byte(want)); at >= 0 {
			s.text = s.text[at+len(want):]
			return
		}
		if !s.read() {
			s.t.Fatalf("no %q in %q", want, s.text)
		}
	}
}

func (s *screen) read() bool {
	_ = s.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := s.from.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatalf("%v behind %q", err, s.text)
	}
	f, ok := s.next()
	if !ok {
		return false
	}
	if f.kind == frameStderr {
		s.t.Errorf("a terminal has no stderr: %q", f.data)
	}
	s.text = append(s.text, f.data...)
	if said, ended := f.control["ended"]; ended {
		var inner struct{ Exec json.RawMessage }
		if json.Unmarshal(said, &inner) != nil {
			s.t.Fatalf("%s", said)
		}
		record := readRecord(s.t, inner.Exec)
		s.end = &record
		return false
	}
	return true
}

func (s *screen) awaitEnd() execRecord {
	s.t.Helper()
	for s.read() {
	}
	if s.end == nil {
		s.t.Fatal("the line was cut before the end")
	}
	return *s.end
}

func (s *screen) typed(text string) {
	s.t.Helper()
	s.write(frameStdin, []byte(text))
}

func TestTerminalHasItsSizeBeforeTheCommandLooks(t *testing.T) {
	g := startGuest(t)
	for range 50 {
		record := g.sh("stty size; tty </dev/tty >/dev/null && echo own", onTerminal(40, 120))
		if got := string(record.Stdout.Head); got != "40 120\r\nown\r\n" {
			t.Fatalf("%q", got)
		}
	}
}

func TestTerminalIsStdinStdoutStderrOfItsOwnSession(t *testing.T) {
	g := startGuest(t)
	text := "for fd in 0 1 2; do [ -t $fd ] && echo yes; done; echo err >&2; echo $TERM; ps -o sid=,tpgid= -p $$ | tr -s ' '; echo $$"
	record := g.sh(text, onTerminal(24, 80))
	lines := strings.Split(strings.ReplaceAll(string(record.Stdout.Head), "\r", ""), "\n")
	if strings.Join(lines[:5], " ") != "yes yes yes err xterm-256color" {
		t.Fatalf("%q", lines)
	}
	if ids := strings.Fields(lines[5]); ids[0] != lines[6] {
		t.Errorf("session %s is not that of the command %s", ids[0], lines[6])
	}
	if record.Stderr.Bytes != 0 || record.summary() != "exited 0" {
		t.Errorf("%s, %d bytes in stderr", record.summary(), record.Stderr.Bytes)
	}
	named := g.sh("echo $TERM", fields{"tty": fields{"rows": 1, "cols": 1}, "env": fields{"TERM": "vt100"}})
	if string(named.Stdout.Head) != "vt100\r\n" {
		t.Errorf("%q", named.Stdout.Head)
	}
}

func TestTerminalSizesAreChecked(t *testing.T) {
	g := startGuest(t)
	g.start([]string{"sleep", "60"}, fields{"exec_id": "plain", "wait": false})
	g.run([]string{"true"}, onTerminal(24, 80, fields{"exec_id": "over"}))
	for i, size := range []string{`{"rows":0,"cols":80}`, `{"rows":24,"cols":65536}`, `{"rows":24}`, `{"rows":1.5,"cols":2}`} {
		body := fmt.Sprintf(`{"exec_id":"bad%d","fingerprint":"f","argv":["true"],"tty":%s}`, i, size)
		if got := g.send("POST", "/v1/execs", strings.NewReader(body)).code(t); got != "422 bad_request" {
			t.Errorf("%s: %s", size, got)
		}
		if got := g.send("POST", "/v1/execs/plain/resize", strings.NewReader(size)).code(t); got != "422 bad_request" {
			t.Errorf("%s: %s", size, got)
		}
	}
	size := fields{"rows": 1, "cols": 65535}
	for id, want := range map[string]string{"plain": "409 conflict", "over": "410 gone", "never": "404 not_found"} {
		if got := g.post("/v1/execs/"+id+"/resize", size).code(t); got != want {
			t.Errorf("%s: %s", id, got)
		}
	}
}

func TestResizeReachesTheForeground(t *testing.T) {
	g := startGuest(t)
	// Not in the trap itself: bash forgets a signal that comes while it runs the trap of the same one.
	text := "trap 'seen=1' WINCH; echo ready; while :; do sleep 0.02; [ \"$seen\" ] && { seen=; stty size; }; done"
	id := g.start([]string{"bash", "-c", text}, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	s.await("ready")
	if a := g.post("/v1/execs/"+id+"/resize", fields{"rows": 50, "cols": 200}); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.await("50 200")
	s.write(frameJSON, []byte(`{"resize":{"rows":7,"cols":9}}`))
	s.await("7 9")
	g.post("/v1/execs/"+id+"/signal", fields{"signal": "KILL"})
	if got := s.awaitEnd().summary(); got != "killed KILL" {
		t.Error(got)
	}
}

func TestJobControlWorks(t *testing.T) {
	g := startGuest(t)
	id := g.start(bash, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	s.await("$ ")
	s.typed("sleep 1000\n")
	eventually(t, "sleep runs", func() bool { return len(alive("sleep 1000")) == 1 })
	s.typed("\x1a")
	s.await("Stopped")
	s.typed("fg\n")
	s.await("sleep 1000")
	eventually(t, "sleep goes on", func() bool {
		pids := alive("sleep 1000")
		return len(pids) == 1 && scanProcesses()[pids[0]].state != 'T'
	})
	s.typed("\x03")
	s.await("$ ")
	s.typed("echo back=$?\n")
	s.await("back=130")
	s.typed("exit 5\n")
	if got := s.awaitEnd().summary(); got != "exited 5" {
		t.Error(got)
	}
}

func TestSignalGoesToTheForegroundAlone(t *testing.T) {
	g := startGuest(t)
	id := g.start(bash, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	s.await("$ ")
	s.typed("sleep 1001; echo left=$?\n")
	eventually(t, "sleep runs", func() bool { return len(alive("sleep 1001")) == 1 })
	if a := g.post("/v1/execs/"+id+"/signal", fields{"signal": "USR1"}); a.json(t)["delivered"] != true {
		t.Fatalf("%s", a.body)
	}
	s.await("left=138")
	s.typed("exit\n")
	if got := s.awaitEnd().summary(); got != "exited 0" {
		t.Error(got)
	}
}

func TestEndOfFileIsTyped(t *testing.T) {
	g := startGuest(t)
	for _, typed := range []string{"", "line\n", "half"} {
		id := g.start([]string{"cat"}, onTerminal(24, 80, fields{"wait": false})).ExecID
		a := g.send("POST", "/v1/execs/"+id+"/stdin?offset=0&eof=1", strings.NewReader(typed))
		if a.status != 200 || int(a.json(t)["offset"].(float64)) != len(typed) {
			t.Fatalf("%q: %d %s", typed, a.status, a.body)
		}
		if record := g.look(id, 10); record.summary() != "exited 0" {
			t.Errorf("%q: %s", typed, record.summary())
		}
	}
}

func TestRepeatedEndOfFileIsTypedOnce(t *testing.T) {
	g := startGuest(t)
	text := "stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -tx1"
	id := g.start([]string{"bash", "-c", text}, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	s.await("ready")
	for range 3 { // an answer was lost, and the call comes again
		g.send("POST", "/v1/execs/"+id+"/stdin?offset=0&eof=1", strings.NewReader("a"))
	}
	g.send("POST", "/v1/execs/"+id+"/stdin?offset=1", strings.NewReader("b"))
	s.await(" 61 04 62")
}

func TestLastOutputOfATerminalIsComplete(t *testing.T) {
	g := startGuest(t)
	for range 20 {
		record := g.sh("seq 1 2000; exit 3", onTerminal(24, 80))
		lines := strings.Split(string(record.Stdout.Head), "\r\n")
		if len(lines) != 2001 || lines[1999] != "2000" || record.summary() != "exited 3" {
			t.Fatalf("%d lines, %s", len(lines), record.summary())
		}
	}
}

func TestBackgroundChildKeepsNoTerminalWaiting(t *testing.T) {
	g := startGuest(t)
	file := t.TempDir() + "/left"
	text := fmt.Sprintf("trap '' HUP; (sleep 0.2; read line; echo read=$? >%s) & echo bye", file)
	began := time.Now()
	record := g.run([]string{"bash", "-c", text}, onTerminal(24, 80))
	if took := time.Since(began); took > 150*time.Millisecond {
		t.Errorf("its end took %v", took)
	}
	if !record.Survivors || string(record.Stdout.Head) != "bye\r\n" {
		t.Errorf("%v %q", record.Survivors, record.Stdout.Head)
	}
	eventually(t, "who was left behind reads the end", func() bool {
		data, _ := os.ReadFile(file)
		return string(data) == "read=1\n"
	})
}

func TestForegroundChildIsHungUp(t *testing.T) {
	g := startGuest(t)
	g.run([]string{"sh", "-c", "sleep 1002 & echo bye"}, onTerminal(24, 80)) // no job control: all are the foreground
	eventually(t, "the child is gone", func() bool { return len(alive("sleep 1002")) == 0 })
}

func TestTerminalThatIsClosedAndOpenedAgainGoesOn(t *testing.T) {
	g := startGuest(t)
	record := g.run([]string{"bash", "-c", "exec <&- >&- 2>&-; sleep 0.05; echo again >/dev/tty"}, onTerminal(24, 80))
	if string(record.Stdout.Head) != "again\r\n" {
		t.Errorf("%q", record.Stdout.Head)
	}
}

func TestTimeoutKillsATerminalsWholeTree(t *testing.T) {
	g := startGuest(t)
	record := g.run([]string{"bash", "-ic", "sleep 1003 & sleep 1003"}, onTerminal(24, 80, fields{"timeout_s": 0.3}))
	if record.summary() != "timeout KILL" || len(alive("sleep 1003")) != 0 {
		t.Errorf("%s, %v live", record.summary(), alive("sleep 1003"))
	}
}

func TestTerminalBelongsToTheCommandsUser(t *testing.T) {
	if !isRoot() {
		t.Skip("only root gives a terminal to another user")
	}
	g := startGuest(t)
	record := g.sh(`stat -c %U "$(tty)"; echo named >"$(tty)"`, onTerminal(24, 80, fields{"user": "nobody"}))
	if string(record.Stdout.Head) != "nobody\r\nnamed\r\n" {
		t.Errorf("%q", record.Stdout.Head)
	}
}

func TestTerminalsLeaveNoDescriptorBehind(t *testing.T) {
	g := startGuest(t)
	count := func() int {
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
		return len(open)
	}
	g.run([]string{"true"}, onTerminal(24, 80))
	before := count()
	for range 20 {
		g.run([]string{"true"}, onTerminal(24, 80))
		g.run([]string{"/nowhere"}, onTerminal(24, 80))
		g.run([]string{"sh", "-c", "sleep 30 & exit"}, onTerminal(24, 80))
	}
	eventually(t, "all are closed", func() bool { return count() <= before })
}

func TestManyTerminalsAtOnce(t *testing.T) {
	g := startGuest(t)
	var ids []string
	for i := range 64 {
		ids = append(ids, g.start([]string{"cat"}, onTerminal(24, 80, fields{"wait": false, "exec_id": fmt.Sprintf("many%d", i)})).ExecID)
	}
	for i, id := range ids {
		s := g.screen(id)
		s.typed(fmt.Sprintf("hello %d\n", i))
		s.await(fmt.Sprintf("hello %d\r\nhello %d\r\n", i, i))
		s.conn.Close()
	}
	g.post("/v1/kill", nil)
}

// startEcho is a terminal in which cat echoes, and its reader.
func startEcho(tb testing.TB) (*testGuest, *screen) {
	g := startGuest(tb)
	id := g.start([]string{"sh", "-c", "stty raw -echo; echo ready; exec cat"}, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	s.await("ready")
	return g, s
}

func BenchmarkKeystroke(b *testing.B) {
	g := startGuest(b)
	id := g.start([]string{"cat"}, onTerminal(24, 80, fields{"wait": false})).ExecID
	s := g.screen(id)
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		s.typed("x")
		s.await("x")
		took = append(took, time.Since(began))
	}
	report(b, took)
}

func BenchmarkKeystrokeThroughProgram(b *testing.B) {
	_, s := startEcho(b)
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		s.typed("x")
		s.await("x")
		took = append(took, time.Since(began))
	}
	report(b, took)
}

func report(b *testing.B, took []time.Duration) {
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func TestSignalsToATerminalThatEndedAreNotDelivered(t *testing.T) {
	g := startGuest(t)
	id := g.run([]string{"true"}, onTerminal(24, 80)).ExecID
	for _, name := range []string{"INT", "KILL"} {
		if a := g.post("/v1/execs/"+id+"/signal", fields{"signal": name}); a.json(t)["delivered"] != false {
			t.Errorf("%s: %s", name, a.body)
		}
	}
}
