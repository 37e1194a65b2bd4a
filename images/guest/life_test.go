package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// exitStatus waits for the guest to end by itself.
func (g *testGuest) exitStatus() int {
	g.t.Helper()
	select {
	case <-g.exited:
		return g.cmd.ProcessState.ExitCode()
	case <-time.After(15 * time.Second):
		g.t.Fatal("the guest lives on")
		return 0
	}
}

func TestHelloTellsWhoIsThere(t *testing.T) {
	g := startGuest(t)
	hello := g.send("GET", "/v1/hello", nil).json(t)
	for _, name := range []string{"protocol", "protocols", "version", "boot_id", "lease_id", "ready", "life_left_s", "uptime_s", "execs_running", "idle_s", "shell", "limits"} {
		if _, there := hello[name]; !there {
			t.Errorf("%s is missing", name)
		}
	}
	if hello["protocol"] != 4.0 || hello["lease_id"] != "" || hello["life_left_s"] != nil || hello["shell"] == "" {
		t.Errorf("%v", hello)
	}
	r := g.start([]string{"sleep", "3020"})
	if hello := g.send("GET", "/v1/hello", nil).json(t); hello["execs_running"] != 1.0 || hello["idle_s"] != 0.0 {
		t.Errorf("%v", hello)
	}
	g.post("/v1/execs/"+r.ExecID+"/signal", fields{"signal": "KILL"})
	g.look(r.ExecID, 5)
	if idle := g.send("GET", "/v1/hello", nil).json(t)["idle_s"].(float64); idle <= 0 || idle > 5 {
		t.Errorf("idle for %g s", idle)
	}
}

func TestClaimLaysDownTheDefaultsOnce(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	claim := fields{"lease_id": "l1", "env": map[string]string{"A": "1", "B": "2"}, "workdir": dir + "/work/deep", "life_s": 100,
		"files":  []fields{{"path": "f", "data_b64": "aGk=", "mode": 0o755}, {"path": dir + "/abs/g", "data_b64": ""}},
		"nofile": 64}
	first := g.post("/v1/claim", claim)
	if first.status != 200 {
		t.Fatalf("%s", first.body)
	}
	r := g.sh("pwd; echo $A $B $PWD; cat f; ulimit -n", fields{"env": map[string]string{"B": "3"}})
	work := dir + "/work/deep"
	if string(r.Stdout.Head) != work+"\n1 3 "+work+"\nhi64\n" {
		t.Fatalf("%q %q", r.Stdout.Head, r.Stderr.Head)
	}
	if info, _ := os.Stat(work + "/f"); info.Mode().Perm() != 0o755 {
		t.Fatal(info.Mode())
	}
	if a := g.send("PUT", "/v1/files?path=rel/x", strings.NewReader("y")); a.json(t)["path"] != work+"/rel/x" {
		t.Fatalf("%s", a.body)
	}
	claim["env"] = map[string]string{}
	if again := g.post("/v1/claim", claim); string(again.body) != string(first.body) {
		t.Fatalf("%s", again.body)
	}
	claim["lease_id"] = "l2"
	if a := g.post("/v1/claim", claim); a.code(t) != "409 conflict" {
		t.Fatalf("%s", a.body)
	}
	hello := g.send("GET", "/v1/hello", nil).json(t)
	if left, _ := hello["life_left_s"].(float64); hello["lease_id"] != "l1" || left < 90 || left > 100 {
		t.Fatalf("%v", hello)
	}
}

func TestClaimThatFailsLeavesTheBoxUnclaimed(t *testing.T) {
	g := startGuest(t)
	for _, bad := range []fields{
		{"lease_id": ""}, {"lease_id": "l", "capabilities": "all"}, {"lease_id": "l", "life_s": -1},
		{"lease_id": "l", "user": "no-such-user"}, {"lease_id": "l", "workdir": "rel"}, {"lease_id": "l", "new": 1},
		{"lease_id": "l", "files": []fields{{"path": "", "data_b64": ""}}}, {"lease_id": "l", "env": map[string]string{"": "x"}},
	} {
		if a := g.post("/v1/claim", bad); a.code(t) != "422 bad_request" {
			t.Errorf("%v: %s", bad, a.body)
		}
	}
	if a := g.post("/v1/claim", fields{"lease_id": "l", "files": []fields{{"path": "/etc/passwd/x", "data_b64": ""}}}); a.code(t) != "409 file_not_directory" {
		t.Errorf("%s", a.body)
	}
	if a := g.post("/v1/claim", fields{"lease_id": "other"}); a.status != 200 {
		t.Errorf("%s", a.body)
	}
}

func TestClaimedUserOwnsTheWorkdirAndRunsCommands(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root")
	}
	g := startGuest(t)
	dir := openDir(t)
	must(t, os.Chmod(dir, 0o755))
	a := g.post("/v1/claim", fields{"lease_id": "l", "user": "nobody", "workdir": dir + "/w", "files": []fields{{"path": "f", "data_b64": "aGk="}}})
	if a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if r := g.sh("id -un; echo x >> f; cat f"); string(r.Stdout.Head) != "nobody\nhix\n" {
		t.Fatalf("%q %q", r.Stdout.Head, r.Stderr.Head)
	}
}

func TestGuestEndsWithItsLifeAndKillsAll(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "l", "life_s": 0.4})
	g.start([]string{"sh", "-c", "setsid sleep 3021 & sleep 3021"})
	if status := g.exitStatus(); status != exitLifeOver {
		t.Fatal(status)
	}
	eventually(t, "all are dead", func() bool { return len(alive("sleep 3021")) == 0 })
}

func TestRenewMovesTheEnd(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "l", "life_s": 0.5})
	if a := g.post("/v1/renew", fields{"life_s": 1000}); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	time.Sleep(700 * time.Millisecond) // the old end must have passed: no event tells that nothing happened
	if left := g.send("GET", "/v1/hello", nil).json(t)["life_left_s"].(float64); left < 900 {
		t.Fatal(left)
	}
	g.post("/v1/renew", fields{"life_s": nil})
	if left := g.send("GET", "/v1/hello", nil).json(t)["life_left_s"]; left != nil {
		t.Fatal(left)
	}
	g.post("/v1/renew", fields{"life_s": 0})
	if status := g.exitStatus(); status != exitLifeOver {
		t.Fatal(status)
	}
}

func TestUnclaimedGuestThatNobodySpeaksToExits(t *testing.T) {
	g := startGuest(t, "--orphan-limit", "0.5")
	if status := g.exitStatus(); status != exitOrphanLimit {
		t.Fatal(status)
	}
}

func TestEveryRequestIsAWordAndAClaimLiftsTheOrphanLimit(t *testing.T) {
	g := startGuest(t, "--orphan-limit", "0.6")
	for range 5 {
		time.Sleep(200 * time.Millisecond) // time is what is tested
		g.send("GET", "/v1/hello", nil)
	}
	g.post("/v1/claim", fields{"lease_id": "l"})
	time.Sleep(900 * time.Millisecond)
	if isClosed(g.exited) {
		t.Fatal("it exited")
	}
}

func TestPeersFromInsideGetNoAnswer(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	cmd := guestCommand("--socket", socket)
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var conn net.Conn
	eventually(t, "it listens", func() (ok bool) {
		var err error
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/hello HTTP/1.1\r\nHost: g\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatal("it answers")
	}
}

func TestTCPAnswersWhoProvesTheTokenAndDeletesItsFile(t *testing.T) {
	const token = "0123456789abcdef0123"
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	must(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := probe.Addr().String()
	probe.Close()
	cmd := guestCommand("--listen", addr, "--token-file", file, "--allow-local-peers")
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	eventually(t, "it listens", func() bool { return askOverTCP(addr, []byte(token)) })
	if askOverTCP(addr, []byte("0123456789abcdef0124")) {
		t.Fatal("the token is not what decides")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Fatal("the token file is still there")
	}
}

// askOverTCP proves the token, checks the guest's proof, and says whether a request was answered.
func askOverTCP(addr string, token []byte) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	nonce := bytes.Repeat([]byte{7}, nonceBytes)
	fmt.Fprintf(conn, "%s%s", proofMagic, nonce)
	var answer [nonceBytes + proofBytes]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return false
	}
	nonces := append(nonce, answer[:nonceBytes]...)
	proven := bytes.Equal(answer[nonceBytes:], proofOf(token, "guest", nonces))
	fmt.Fprintf(conn, "%sGET /v1/hello HTTP/1.1\r\nHost: g\r\n\r\n", proofOf(token, "daemon", nonces))
	status := make([]byte, 12)
	_, err = io.ReadFull(conn, status)
	return proven && err == nil && string(status) == "HTTP/1.1 200"
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for _, args := range []string{"--socket", "--socket /tmp/a --listen 127.0.0.1:1", "--listen 127.0.0.1:1", "--socket /tmp/a extra", "--nope", "--socket /tmp/a --orphan-limit 0"} {
		cmd := guestCommand(strings.Fields(args)...)
		err := cmd.Run()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != exitUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestReadingsAreNumbersOrNull(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		must(t, os.MkdirAll(filepath.Dir(root+"/"+name), 0o755))
		must(t, os.WriteFile(root+"/"+name, []byte(text), 0o644))
	}
	if r := newLimitReader(root).read("/"); r.MemoryBytes != nil || r.OOMKills != nil || r.DiskFree == nil || r.LoadOneMinue == nil {
		t.Fatalf("%+v", r)
	}
	write("memory.current", "100\n")
	write("memory.peak", "200\n")
	write("memory.max", "max\n")
	write("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
	write("pids.current", "7\n")
	write("cpu.stat", "usage_usec 1500000\nuser_usec 1\n")
	l := newLimitReader(root)
	r := l.read("/")
	if l.kind != "v2" || l.kills() != (kills{own: 2, atLimit: 3}) || *r.MemoryBytes != 100 || *r.MemoryPeak != 200 || r.MemoryLimit != nil || *r.PIDs != 7 || *r.CPUS != 1.5 || *r.OOMKills != 2 {
		t.Fatalf("%+v", r)
	}
	root = t.TempDir()
	write("memory/memory.usage_in_bytes", "100\n")
	write("memory/memory.max_usage_in_bytes", "200\n")
	write("memory/memory.limit_in_bytes", "9223372036854771712\n")
	write("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
	write("pids/pids.current", "8\n")
	write("cpuacct/cpuacct.usage", "2500000000\n")
	l = newLimitReader(root)
	r = l.read("/")
	if l.kind != "v1" || l.kills() != (kills{own: 4, atLimit: -1}) || *r.MemoryBytes != 100 || r.MemoryLimit != nil || *r.PIDs != 8 || *r.CPUS != 2.5 {
		t.Fatalf("%+v", r)
	}
}

func TestOutOfMemoryIsToldByTheCounterAndTheSignalTogether(t *testing.T) {
	root := t.TempDir()
	counter := root + "/memory.events"
	must(t, os.WriteFile(root+"/memory.current", []byte("1\n"), 0o644))
	must(t, os.WriteFile(counter, []byte("oom_kill 5\n"), 0o644))
	g := startGuest(t, "--cgroup-root", root)
	for text, want := range map[string]string{
		"echo oom_kill 6 > %s; kill -9 $$": "oom KILL",
		"echo oom_kill 7 > %s; exit 0":     "exited 0",
	} {
		must(t, os.WriteFile(counter, []byte("oom_kill 5\n"), 0o644))
		r := g.sh(fmt.Sprintf(text, counter))
		if r.summary() != want || r.OOMKills < 1 {
			t.Errorf("%s: %s, %d kills", text, r.summary(), r.OOMKills)
		}
	}
	if r := g.sh("kill -9 $$"); r.summary() != "signaled KILL" || r.OOMKills != 0 {
		t.Error(r.summary())
	}
}

func TestIdleGuestUsesNoProcessorTime(t *testing.T) {
	g := startGuest(t)
	g.sh("true")
	time.Sleep(100 * time.Millisecond)
	before := switches(g.cmd.Process.Pid)
	time.Sleep(1500 * time.Millisecond)
	// Not one wake-up a second: what runs is the runtime's own rare housekeeping.
	if after := switches(g.cmd.Process.Pid); after-before > 20 {
		t.Fatalf("%d context switches in 1.5 s", after-before)
	}
}

// switches counts the voluntary context switches of all threads.
func switches(pid int) (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		for _, line := range strings.Split(string(data), "\n") {
			var count int
			if _, err := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &count); err == nil {
				n += count
			}
		}
	}
	return n
}
