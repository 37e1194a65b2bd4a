package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the guest: tests speak to a guest that is a process of its own.
func TestMain(m *testing.M) {
	if args := os.Getenv("SANDBOX_GUEST_TEST_ARGS"); args != "" {
		if err := serve(parseOptions(strings.Fields(args))); err != nil {
			exit(1, err.Error())
		}
		return
	}
	if os.Getenv("SANDBOX_GUEST_TEST_KERNEL") != "" {
		fakeKernel(os.Args[1])
		return
	}
	// Whoever tests may have folders on the PATH that the guest's user may not read.
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	os.Exit(m.Run())
}

// testGuest is a guest and a client of it.
type testGuest struct {
	t      testing.TB
	cmd    *exec.Cmd
	socket string
	http   *http.Client
	exited chan struct{}
	serial atomic.Int64
}

func guestCommand(args ...string) *exec.Cmd {
	if binary := os.Getenv("SANDBOX_GUEST_TEST_BINARY"); binary != "" {
		return exec.Command(binary, append([]string{"serve"}, args...)...)
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SANDBOX_GUEST_TEST_ARGS="+strings.Join(args, " "))
	return cmd
}

func startGuest(t testing.TB, args ...string) *testGuest {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := guestCommand(append([]string{"--socket", socket, "--allow-local-peers"}, args...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &testGuest{t: t, cmd: cmd, socket: socket, exited: make(chan struct{})}
	g.http = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	go func() {
		_ = cmd.Wait()
		close(g.exited)
	}()
	t.Cleanup(g.stop)
	g.waitReady()
	return g
}

func (g *testGuest) waitReady() {
	g.t.Helper()
	eventually(g.t, "the guest answers", func() bool {
		response, err := g.http.Get("http://guest/v1/hello")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
}

// stop kills what the guest started, then the guest.
func (g *testGuest) stop() {
	if !isClosed(g.exited) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if request, err := http.NewRequestWithContext(ctx, "POST", "http://guest/v1/kill", nil); err == nil {
			if response, err := g.http.Do(request); err == nil {
				response.Body.Close()
			}
		}
		g.awaitKernelsDead(ctx)
		_ = g.cmd.Process.Kill()
	}
	<-g.exited
	g.http.CloseIdleConnections()
}

// awaitKernelsDead gives the guest the time to take away the files that it wrote for its kernels.
func (g *testGuest) awaitKernelsDead(ctx context.Context) {
	for alive := true; alive && ctx.Err() == nil; {
		request, _ := http.NewRequestWithContext(ctx, "GET", "http://guest/v1/kernels", nil)
		response, err := g.http.Do(request)
		if err != nil {
			return
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		alive = strings.Contains(string(text), `"state":"running"`) || strings.Contains(string(text), `"state":"starting"`)
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(a.body, &fields); err != nil {
		t.Fatalf("%d: %q is not JSON", a.status, a.body)
	}
	return fields
}

func (a answer) code(t testing.TB) string {
	t.Helper()
	code, _ := a.json(t)["code"].(string)
	return fmt.Sprintf("%d %s", a.status, code)
}

func (g *testGuest) send(method, path string, body io.Reader) answer {
	g.t.Helper()
	request, err := http.NewRequest(method, "http://guest"+path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.do(request)
}

func (g *testGuest) do(request *http.Request) answer {
	g.t.Helper()
	response, err := g.http.Do(request)
	if err != nil {
		g.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, data}
}

func (g *testGuest) post(path string, body any) answer {
	g.t.Helper()
	return g.call("POST", path, body)
}

func (g *testGuest) call(method, path string, body any) answer {
	g.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.send(method, path, bytes.NewReader(data))
}

// execRecord is an Exec as a client reads it.
type execRecord struct {
	ExecID      string  `json:"exec_id"`
	State       string  `json:"state"`
	Outcome     string  `json:"outcome"`
	ExitCode    *int    `json:"exit_code"`
	Signal      string  `json:"signal"`
	Reason      string  `json:"reason"`
	Detail      string  `json:"detail"`
	Stdout      kept    `json:"stdout"`
	Stderr      kept    `json:"stderr"`
	Dropped     bool    `json:"output_dropped"`
	OOMKills    int64   `json:"oom_kills"`
	DurationS   float64 `json:"duration_s"`
	Survivors   bool    `json:"survivors"`
	ShellEnded  bool    `json:"shell_ended"`
	Interrupted bool    `json:"interrupted"`
}

// summary is how it ended in one word: "exited 3", "signaled KILL", "start_failed not_found".
func (r execRecord) summary() string {
	switch {
	case r.ExitCode != nil:
		return fmt.Sprintf("%s %d", r.Outcome, *r.ExitCode)
	case r.Reason != "":
		return r.Outcome + " " + r.Reason
	}
	return r.Outcome + " " + r.Signal
}

type fields map[string]any

// run runs a command to its end.
func (g *testGuest) run(argv []string, extra ...fields) execRecord {
	g.t.Helper()
	return g.start(argv, append(extra, fields{"wait": true})...)
}

func (g *testGuest) sh(text string, extra ...fields) execRecord {
	g.t.Helper()
	return g.run([]string{"/bin/sh", "-c", text}, extra...)
}

func (g *testGuest) start(argv []string, extra ...fields) execRecord {
	g.t.Helper()
	body := fields{"exec_id": fmt.Sprintf("e%d", g.serial.Add(1)), "fingerprint": "f", "argv": argv}
	for _, options := range extra {
		for name, value := range options {
			body[name] = value
		}
	}
	a := g.post("/v1/execs", body)
	if a.status != 200 && a.status != 202 {
		g.t.Fatalf("%d %s", a.status, a.body)
	}
	return readRecord(g.t, a.body)
}

func readRecord(t testing.TB, data []byte) (r execRecord) {
	t.Helper()
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return r
}

func (g *testGuest) look(id string, waitS float64) execRecord {
	g.t.Helper()
	return readRecord(g.t, g.send("GET", fmt.Sprintf("/v1/execs/%s?wait_s=%g", id, waitS), nil).body)
}

// attachment is an attached reader.
type attachment struct {
	t    testing.TB
	conn net.Conn
	from *bufio.Reader
}

type frame struct {
	kind    byte
	seq     int64
	offset  int64
	data    []byte
	control map[string]json.RawMessage
}

func (g *testGuest) attach(id, query string) *attachment {
	g.t.Helper()
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /v1/execs/%s/attach?%s HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: sandbox-frames\r\n\r\n", id, query)
	a := &attachment{g.t, conn, bufio.NewReaderSize(conn, 1<<20)}
	response, err := http.ReadResponse(a.from, nil)
	if err != nil || response.StatusCode != 101 {
		g.t.Fatalf("attach: %v %v", response, err)
	}
	return a
}

// next is the next frame; ok is false at the end of the connection.
func (a *attachment) next() (f frame, ok bool) {
	a.t.Helper()
	_ = a.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	kind, payload, err := readFrame(a.from, nil)
	if err == io.EOF {
		return f, false
	}
	if err != nil {
		a.t.Fatal(err)
	}
	f.kind = kind
	if kind == frameJSON {
		if err := json.Unmarshal(payload, &f.control); err != nil {
			a.t.Fatal(err)
		}
		return f, true
	}
	f.seq, f.offset = int64(binary.BigEndian.Uint64(payload)), int64(binary.BigEndian.Uint64(payload[8:]))
	f.data = payload[pieceHead:]
	return f, true
}

// all reads to the end.
func (a *attachment) all() (frames []frame) {
	a.t.Helper()
	for {
		f, ok := a.next()
		if !ok {
			return frames
		}
		frames = append(frames, f)
	}
}

func (a *attachment) write(kind byte, payload []byte) {
	a.t.Helper()
	if _, err := a.conn.Write(appendFrame(nil, kind, payload)); err != nil {
		a.t.Fatal(err)
	}
}

// alive lists the living processes whose command line holds the text.
func alive(text string) (pids []int) {
	for pid, entry := range scanProcesses() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if entry.state != 'Z' && strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), text) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isRoot() bool { return syscall.Geteuid() == 0 }
