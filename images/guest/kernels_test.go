package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// fakeKernel listens as a kernel does, and does what the content of a message on its shell says.
func fakeKernel(path string) {
	var facts struct{ IP, Key string }
	data, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(data, &facts) != nil {
		os.Exit(4)
	}
	listeners := map[int]net.Listener{}
	for channel := channelShell; channel <= channelControl; channel++ {
		if listeners[channel], err = net.Listen("unix", fmt.Sprintf("%s-%d", facts.IP, channel)); err != nil {
			os.Exit(5)
		}
	}
	conns := map[int]*zmtpConn{}
	for _, channel := range []int{channelIOPub, channelShell, channelControl, channelStdin} {
		conn, err := listeners[channel].Accept()
		if err != nil {
			os.Exit(6)
		}
		z := &zmtpConn{conn: conn, from: bufio.NewReader(conn), to: bufio.NewWriter(conn)}
		if z.greet(map[bool]string{true: "PUB", false: "ROUTER"}[channel == channelIOPub], "") != nil {
			os.Exit(7)
		}
		conns[channel] = z
	}
	if parts, err := conns[channelIOPub].receive(10); err != nil || string(parts[0]) != "\x01" {
		os.Exit(8)
	}
	for {
		parts, err := conns[channelShell].receive(1 << 20)
		if err != nil {
			os.Exit(9)
		}
		obey(conns, parts)
	}
}

func obey(conns map[int]*zmtpConn, parts [][]byte) {
	var order struct{ Say, Size, Exit int }
	_ = json.Unmarshal(parts[len(parts)-1], &order)
	header := parts[2]
	say := func(channel int, kind, content string) {
		own := fmt.Sprintf(`{"msg_id": "k", "msg_type": %q}`, kind)
		message := [][]byte{[]byte("topic"), delimiter, []byte("sig"), []byte(own), header, []byte("{}"), []byte(content)}
		if conns[channel].send(message, time.Minute) != nil {
			os.Exit(10)
		}
	}
	for i := range order.Say {
		say(channelIOPub, "stream", fmt.Sprintf(`{"text": "%d %s"}`, i, strings.Repeat("x", order.Size)))
	}
	if order.Exit > 0 {
		os.Exit(order.Exit)
	}
	say(channelIOPub, "status", `{"execution_state": "idle"}`)
	say(channelShell, "execute_reply", `{"status": "ok"}`)
}

func (g *testGuest) startKernel(id string) map[string]any {
	g.t.Helper()
	self, _ := os.Executable()
	a := g.call("PUT", "/v1/kernels/"+id, map[string]any{
		"argv": []string{self, connectionFile}, "env": map[string]string{"SANDBOX_GUEST_TEST_KERNEL": "1"},
		"note": map[string]any{"spec": "fake"},
	})
	if a.status != 201 && a.status != 200 {
		g.t.Fatalf("%d: %s", a.status, a.body)
	}
	return a.json(g.t)
}

// kernelLine is an attached reader of a kernel.
type kernelLine struct {
	t    testing.TB
	conn net.Conn
	from *bufio.Reader
}

func (g *testGuest) attachKernel(id string, after uint64) *kernelLine {
	g.t.Helper()
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "GET /v1/kernels/%s/attach?after=%d HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: sandbox-frames\r\n\r\n", id, after)
	line := &kernelLine{g.t, conn, bufio.NewReader(conn)}
	response, err := http.ReadResponse(line.from, nil)
	if err != nil || response.StatusCode != 101 {
		g.t.Fatalf("%v %+v", err, response)
	}
	return line
}

func (l *kernelLine) send(id, content string) {
	l.t.Helper()
	header := fmt.Sprintf(`{"msg_id": %q, "msg_type": "execute_request"}`, id)
	body := append([]byte{channelShell, byte(len(id))}, id...)
	for _, part := range []string{string(delimiter), "sig", header, "{}", "{}", content} {
		body = binary.BigEndian.AppendUint32(body, uint32(len(part)))
		body = append(body, part...)
	}
	if _, err := l.conn.Write(appendFrame(nil, frameSend, body)); err != nil {
		l.t.Fatal(err)
	}
}

// said is a frame of a kernel: what it tells as JSON, or a message.
type said struct {
	json         map[string]any
	seq          uint64
	channel      int
	kind, parent string
	content      string
}

func (l *kernelLine) next() (s said, err error) {
	kind, payload, err := readFrameOf(l.from, nil, 2*largestMessage)
	if err != nil {
		return s, err
	}
	if kind == frameJSON {
		return s, json.Unmarshal(payload, &s.json)
	}
	s.seq, s.channel = binary.BigEndian.Uint64(payload), int(payload[8])
	var parts [][]byte
	for rest := payload[9:]; len(rest) > 0; {
		size := binary.BigEndian.Uint32(rest)
		parts = append(parts, rest[4:4+size])
		rest = rest[4+size:]
	}
	s.kind, s.parent = readIDs(parts)
	s.content = string(parts[len(parts)-1])
	return s, nil
}

// until reads on to a frame that is wanted, and returns all before it and it.
func (l *kernelLine) until(wanted func(said) bool) (all []said) {
	l.t.Helper()
	for {
		s, err := l.next()
		if err != nil {
			l.t.Fatalf("%v, after %d frames", err, len(all))
		}
		if all = append(all, s); wanted(s) {
			return all
		}
	}
}

// idleAfter ends what a kernel shows of a message; its reply comes by another connection.
func idleAfter(id string) func(said) bool {
	return func(s said) bool { return s.kind == "status" && s.parent == id }
}

func TestAKernelSaysWhatItSaidToWhoComesLater(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	started := g.startKernel("k")
	if note := started["note"].(map[string]any); note["spec"] != "fake" {
		t.Errorf("%v", started)
	}
	first := g.attachKernel("k", 0)
	first.send("one", `{"say": 3}`)
	seen := first.until(idleAfter("one"))
	first.conn.Close()
	again := g.attachKernel("k", 0)
	repeated := again.until(idleAfter("one"))
	again.send("one", `{"say": 3}`) // its id is known: it does not run twice
	answered := again.until(func(s said) bool { return s.json["sent"] != nil })
	if sent := answered[len(answered)-1].json["sent"].(map[string]any); sent["fresh"] != false {
		t.Errorf("%v", sent)
	}
	again.send("two", `{}`)
	for _, s := range again.until(idleAfter("two")) {
		if s.kind == "stream" {
			t.Errorf("ran again: %+v", s)
		}
	}
	texts := func(all []said) (found []string) {
		for _, s := range all {
			if s.kind == "stream" {
				found = append(found, s.content)
			}
		}
		return found
	}
	if a, b := texts(seen), texts(repeated); len(a) != 3 || strings.Join(a, "") != strings.Join(b, "") {
		t.Errorf("%v, then %v", a, b)
	}
}

func TestAKernelThatDiesSaysHowToItsReaders(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	g.startKernel("k")
	line := g.attachKernel("k", 0)
	line.send("last", `{"say": 2, "exit": 3}`)
	all := line.until(func(s said) bool { return s.json["ended"] != nil })
	ended := all[len(all)-1].json["ended"].(map[string]any)
	if ended["outcome"] != outcomeExited || ended["exit_code"] != 3.0 {
		t.Errorf("%v", ended)
	}
	spoken := 0
	for _, s := range all {
		if s.kind == "stream" && s.parent == "last" {
			spoken++
		}
	}
	if spoken != 2 {
		t.Errorf("%d of its 2 last words came", spoken)
	}
	if _, err := line.next(); err != io.EOF {
		t.Errorf("%v", err)
	}
	late := g.attachKernel("k", 0)
	late.until(func(s said) bool { return s.json["ended"] != nil })
}

func TestAFloodKeepsItsEndAndSaysWhatIsMissing(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	g.startKernel("k")
	sender := g.attachKernel("k", 0)
	const pieces, size = 900, 64 << 10
	sender.send("flood", fmt.Sprintf(`{"say": %d, "size": %d}`, pieces, size))
	sender.until(idleAfter("flood"))
	reader := g.attachKernel("k", 0)
	kept, lost, last := 0, 0, ""
	for _, s := range reader.until(idleAfter("flood")) {
		if gap, ok := s.json["gap"].(map[string]any); ok {
			if gap["parent"] != "flood" || kept > 0 {
				t.Errorf("%v after %d", gap, kept)
			}
			lost += int(gap["messages"].(float64))
		}
		if s.kind == "stream" {
			kept++
			last = s.content
		}
	}
	if kept+lost != pieces || lost == 0 || kept < pieces/3 || !strings.Contains(last, fmt.Sprintf(`"%d `, pieces-1)) {
		t.Errorf("%d kept, %d told as lost, the last %.20q", kept, lost, last)
	}
}

func TestAKernelThatNeverListensIsStartedForNothingAndSaysSo(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	a := g.call("PUT", "/v1/kernels/k", map[string]any{"argv": []string{"sh", "-c", "echo no module >&2; exit 1"}})
	if a.status != 201 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	line := g.attachKernel("k", 0)
	all := line.until(func(s said) bool { return s.json["ended"] != nil })
	ended := all[len(all)-1].json["ended"].(map[string]any)
	if ended["exit_code"] != 1.0 || ended["stderr"].(map[string]any)["bytes"] != 10.0 {
		t.Errorf("%v", ended)
	}
}

func TestKernelsAreNoCommandsButEndWithThem(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	g.startKernel("k")
	g.attachKernel("k", 0)
	if running := g.call("GET", "/v1/hello", nil).json(t)["execs_running"]; running != 0.0 {
		t.Errorf("%v commands run", running)
	}
	if list := g.call("GET", "/v1/execs", nil).json(t)["execs"].([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
	g.call("POST", "/v1/kill", nil)
	kernels := g.call("GET", "/v1/kernels", nil).json(t)["kernels"].([]any)
	if state := kernels[0].(map[string]any)["state"]; state != "dead" {
		t.Errorf("%v", state)
	}
}

func TestAnInterruptReachesTheKernelsGroup(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	g.startKernel("k")
	line := g.attachKernel("k", 0)
	if a := g.call("POST", "/v1/kernels/k/signal", map[string]string{"signal": "INT"}); a.json(t)["delivered"] != true {
		t.Errorf("%s", a.body)
	}
	all := line.until(func(s said) bool { return s.json["ended"] != nil })
	if ended := all[len(all)-1].json["ended"].(map[string]any); ended["outcome"] != outcomeKilled || ended["signal"] != "INT" {
		t.Errorf("%v", ended)
	}
}

func TestHostileZmtpPeersAreRefused(t *testing.T) {
	greeting := make([]byte, zmtpGreeting)
	greeting[0], greeting[9], greeting[10] = 0xFF, 0x7F, 3
	copy(greeting[12:], "NULL")
	for name, bytes := range map[string][]byte{
		"nothing": {}, "old": append([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1}, make([]byte, 53)...),
		"no command":            append(greeting[:zmtpGreeting:zmtpGreeting], 0, 3, 'a', 'b', 'c'),
		"a command without end": append(greeting[:zmtpGreeting:zmtpGreeting], zmtpCommand|zmtpLong, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF),
	} {
		ours, theirs := net.Pipe()
		go func() {
			go io.Copy(io.Discard, theirs)
			_, _ = theirs.Write(bytes)
			theirs.Close()
		}()
		z := &zmtpConn{conn: ours, from: bufio.NewReader(ours), to: bufio.NewWriter(ours)}
		if err := z.greet("DEALER", ""); err == nil {
			t.Errorf("%s: believed", name)
		}
		ours.Close()
	}
}

func TestAMessageThatIsTooLargeIsSkippedWhole(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	z := &zmtpConn{conn: ours, from: bufio.NewReader(ours), to: bufio.NewWriter(ours)}
	peer := &zmtpConn{conn: theirs, from: bufio.NewReader(theirs), to: bufio.NewWriter(theirs)}
	go func() {
		_ = peer.send([][]byte{[]byte("head"), make([]byte, 5000), []byte("tail")}, time.Minute)
		_ = peer.send([][]byte{[]byte("next")}, time.Minute)
	}()
	if parts, err := z.receive(1000); err != errTooLarge || len(parts) != 1 || string(parts[0]) != "head" {
		t.Errorf("%q %v", parts, err)
	}
	if parts, err := z.receive(1000); err != nil || string(parts[0]) != "next" {
		t.Errorf("%q %v", parts, err)
	}
}
