package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestEveryExitStatusAndSignalIsTold(t *testing.T) {
	g := startGuest(t)
	want := map[string]string{}
	for _, code := range []int{0, 1, 2, 125, 126, 128, 255, 256, 42} {
		want[fmt.Sprintf("exit %d", code)] = fmt.Sprintf("exited %d", code%256)
	}
	for signal, name := range map[int]string{9: "KILL", 15: "TERM", 11: "SEGV", 13: "PIPE", 2: "INT", 1: "HUP", 3: "QUIT"} {
		want[fmt.Sprintf("kill -%d $$", signal)] = "signaled " + name
	}
	for text, summary := range want {
		if got := g.sh(text); got.summary() != summary || got.State != "ended" {
			t.Errorf("%s: %s, want %s", text, got.summary(), summary)
		}
	}
}

func TestFiveHundredCommandsAtOnceEachTellTheirOwnStatus(t *testing.T) {
	g := startGuest(t)
	var all sync.WaitGroup
	slots := make(chan struct{}, 50)
	for i := range 500 {
		all.Add(1)
		slots <- struct{}{}
		go func() {
			defer all.Done()
			defer func() { <-slots }()
			r := g.sh(fmt.Sprintf("echo %d; exit %d", i, i%256))
			if r.summary() != fmt.Sprintf("exited %d", i%256) || string(r.Stdout.Head) != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %s %q", i, r.summary(), r.Stdout.Head)
			}
		}()
	}
	all.Wait()
}

func TestLastBytesBeforeExitAreNeverLost(t *testing.T) {
	g := startGuest(t)
	for range 100 {
		r := g.sh("head -c 100003 /dev/zero; echo end >&2")
		if r.summary() != "exited 0" || r.Stdout.Bytes != 100003 || len(r.Stdout.Head) != 100003 || string(r.Stderr.Head) != "end\n" {
			t.Fatalf("%s %d", r.summary(), r.Stdout.Bytes)
		}
	}
}

func TestCommandEndsThoughAGrandchildHoldsItsPipe(t *testing.T) {
	g := startGuest(t)
	for range 20 {
		r := g.sh("sleep 3001 & echo done")
		if r.summary() != "exited 0" || string(r.Stdout.Head) != "done\n" || !r.Survivors || r.DurationS > 4 {
			t.Fatalf("%s %q survivors=%v", r.summary(), r.Stdout.Head, r.Survivors)
		}
	}
	if n := len(alive("sleep 3001")); n != 20 {
		t.Fatalf("%d of 20 detached children live", n)
	}
	g.post("/v1/kill", fields{})
	if n := len(alive("sleep 3001")); n != 0 {
		t.Fatalf("%d live after kill", n)
	}
}

func TestSurvivorThatWritesWithoutEndHoldsNothingBack(t *testing.T) {
	g := startGuest(t)
	r := g.sh("yes & echo done >&2; exit 5")
	if r.summary() != "exited 5" || string(r.Stderr.Head) != "done\n" {
		t.Fatalf("%s %q", r.summary(), r.Stderr.Head)
	}
	g.post("/v1/kill", fields{})
}

func TestTimeoutKillsTheTreeDoubleForksAndSessionsIncluded(t *testing.T) {
	g := startGuest(t)
	other := g.start([]string{"sleep", "3002"})
	r := g.sh("echo begin; echo err >&2; setsid sleep 3003 & (setsid setsid sleep 3003 & ) ; (sleep 3003 & wait) & env -i sleep 3003",
		fields{"timeout_s": 0.4})
	if r.summary() != "timeout KILL" || string(r.Stdout.Head) != "begin\n" || string(r.Stderr.Head) != "err\n" {
		t.Fatalf("%s %q %q", r.summary(), r.Stdout.Head, r.Stderr.Head)
	}
	if left := alive("sleep 3003"); len(left) != 0 {
		t.Fatalf("left over: %v", left)
	}
	if len(alive("sleep 3002")) != 1 {
		t.Fatal("another command was hit")
	}
	if a := g.post("/v1/execs/"+other.ExecID+"/signal", fields{"signal": "KILL"}); a.json(t)["delivered"] != true {
		t.Fatalf("%s", a.body)
	}
	if r := g.look(other.ExecID, 5); r.summary() != "killed KILL" {
		t.Fatal(r.summary())
	}
}

func TestBusyLoopIsEndedAtItsDeadline(t *testing.T) {
	g := startGuest(t)
	r := g.sh("while :; do :; done", fields{"timeout_s": 0.3})
	if r.summary() != "timeout KILL" || r.DurationS < 0.3 {
		t.Fatalf("%s after %g s", r.summary(), r.DurationS)
	}
}

func TestStatusIsTrueThoughTheCommandKilledItsShim(t *testing.T) {
	g := startGuest(t)
	r := g.sh(`kill -9 $PPID; sleep 0.1; exit 9`)
	if r.summary() != "exited 9" {
		t.Fatal(r.summary())
	}
	r = g.sh(`kill -9 $PPID; sleep 3004 & sleep 3004`, fields{"timeout_s": 0.3})
	if r.summary() != "timeout KILL" || len(alive("sleep 3004")) != 0 {
		t.Fatal(r.summary(), alive("sleep 3004"))
	}
}

func TestStoppedShimIsSetGoingAgain(t *testing.T) {
	g := startGuest(t)
	if r := g.sh(`kill -STOP $PPID; exit 8`, fields{"timeout_s": 5}); r.summary() != "exited 8" {
		t.Fatal(r.summary())
	}
}

func TestSignalsToTheGuestAndItsShimsAreIgnored(t *testing.T) {
	g := startGuest(t)
	r := g.sh(fmt.Sprintf(`for s in HUP INT TERM PIPE QUIT USR1 ABRT; do kill -$s $PPID; done; for s in HUP INT TERM PIPE QUIT USR1; do kill -$s %d; done; exit 7`, g.cmd.Process.Pid))
	if r.summary() != "exited 7" {
		t.Fatal(r.summary())
	}
	if r := g.sh("exit 6"); r.summary() != "exited 6" {
		t.Fatal(r.summary())
	}
}

func TestStartFailuresAreTyped(t *testing.T) {
	g := startGuest(t)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	script := filepath.Join(dir, "script")
	must(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755))
	plain := filepath.Join(dir, "plain")
	must(t, os.WriteFile(plain, []byte("echo hi\n"), 0o644))
	cases := []struct {
		argv   []string
		extra  fields
		reason string
	}{
		{[]string{"no-such-cmd-xyz"}, nil, "not_found"},
		{[]string{""}, nil, "not_found"},
		{[]string{"/etc/hostname/x"}, nil, "not_found"},
		{[]string{script}, nil, "not_found"},
		{[]string{plain}, nil, "not_executable"},
		{[]string{"/etc"}, nil, "not_executable"},
		{[]string{"echo", strings.Repeat("x", 200_000)}, nil, "too_long"},
		{[]string{"true"}, fields{"cwd": "/nope"}, "bad_cwd"},
		{[]string{"true"}, fields{"cwd": "/etc/passwd"}, "bad_cwd"},
		{[]string{"true"}, fields{"user": "no-such-user"}, "bad_user"},
	}
	if isRoot() {
		closed := filepath.Join(dir, "closed")
		must(t, os.Mkdir(closed, 0o700))
		cases = append(cases, struct {
			argv   []string
			extra  fields
			reason string
		}{[]string{"true"}, fields{"cwd": closed, "user": "nobody"}, "bad_cwd"})
	}
	for _, c := range cases {
		r := g.run(c.argv, c.extra)
		if r.summary() != "start_failed "+c.reason || r.ExitCode != nil || r.Detail == "" || r.Stdout.Bytes+r.Stderr.Bytes != 0 {
			t.Errorf("%.40q %v: %s, want %s (%s)", c.argv, c.extra, r.summary(), c.reason, r.Detail)
		}
	}
	for text, code := range map[string]int{"no-such-cmd-xyz": 127, "exit 127": 127} {
		if r := g.sh(text); r.summary() != fmt.Sprintf("exited %d", code) {
			t.Errorf("%s: %s", text, r.summary())
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInvalidRequestsAreRefusedAndRunNothing(t *testing.T) {
	g := startGuest(t)
	for _, body := range []fields{
		{"argv": []string{"true", "a\x00b"}},
		{"argv": []string{"true"}, "env": map[string]string{"A\x00": "b"}},
		{"argv": []string{"true"}, "env": map[string]string{"A": "b\x00"}},
		{"argv": []string{"true"}, "env": map[string]string{"": "b"}},
		{"argv": []string{"true"}, "env": map[string]string{"A=B": "b"}},
		{"argv": []string{"true"}, "cwd": "/\x00"},
		{"argv": []string{}},
		{"argv": []string{"true"}, "timeout_s": -1},
		{"argv": []string{"true"}, "surprise": 1},
		{"argv": []string{"true"}, "tty": fields{"rows": 0, "cols": 2}},
		{"argv": []string{"true"}, "exec_id": "a/b"},
		{"argv": "true"},
	} {
		if body["exec_id"] == nil {
			body["exec_id"] = "bad"
		}
		if a := g.post("/v1/execs", body); a.code(t) != "422 bad_request" {
			t.Errorf("%v: %d %s", body, a.status, a.body)
		}
	}
	if a := g.send("POST", "/v1/execs", strings.NewReader("{")); a.code(t) != "422 bad_request" {
		t.Errorf("%s", a.body)
	}
	if a := g.send("POST", "/v1/execs", bytes.NewReader(make([]byte, largestJSON+1))); a.code(t) != "413 too_large" {
		t.Errorf("%s", a.body)
	}
	if a := g.send("GET", "/v1/execs/bad", nil); a.code(t) != "404 not_found" {
		t.Errorf("%s", a.body)
	}
	if a := g.send("GET", "/v1/nothing", nil); a.code(t) != "404 not_found" {
		t.Errorf("%s", a.body)
	}
}

func TestEnvironmentArrivesByteForByte(t *testing.T) {
	g := startGuest(t)
	env := map[string]string{"A": "l1\nl2", "B": "x=y=z", "C": "", "D": "$(id) `id` $HOME 'q' \"q\"", "E": "é€\t"}
	for name, value := range env {
		r := g.run([]string{"printenv", name}, fields{"env": env})
		if string(r.Stdout.Head) != value+"\n" {
			t.Errorf("%s: %q", name, r.Stdout.Head)
		}
	}
	if r := g.run([]string{"env"}, fields{"env": env}); bytes.Contains(r.Stdout.Head, []byte("SANDBOX_GUEST_TEST")) {
		t.Error("the guest's own environment leaks")
	}
}

func TestSameIDAttachesAndNeverRunsTwice(t *testing.T) {
	g := startGuest(t)
	marker := filepath.Join(t.TempDir(), "n")
	body := fields{"exec_id": "once", "fingerprint": "a", "argv": []string{"sh", "-c", "echo x >> " + marker + "; sleep 0.2; exit 4"}, "wait": true}
	var all sync.WaitGroup
	for range 10 {
		all.Add(1)
		go func() {
			defer all.Done()
			if r := readRecord(t, g.post("/v1/execs", body).body); r.summary() != "exited 4" {
				t.Error(r.summary())
			}
		}()
	}
	all.Wait()
	if data, _ := os.ReadFile(marker); string(data) != "x\n" {
		t.Fatalf("ran %d times", len(data)/2)
	}
	body["fingerprint"] = "b"
	if a := g.post("/v1/execs", body); a.code(t) != "409 conflict" {
		t.Fatalf("%s", a.body)
	}
}

func TestCallerThatGoesAwayEndsNothing(t *testing.T) {
	g := startGuest(t)
	a := g.start([]string{"sh", "-c", "read x; echo got $x"}, fields{"stdin_open": true})
	conn := g.attach(a.ExecID, "after=0")
	conn.next()
	conn.conn.Close()
	if a := g.send("POST", "/v1/execs/"+a.ExecID+"/stdin?eof=1", strings.NewReader("you\n")); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if r := g.look(a.ExecID, 5); r.summary() != "exited 0" || string(r.Stdout.Head) != "got you\n" {
		t.Fatal(r.summary())
	}
}

func TestNoStdinIsEndOfFileAtOnce(t *testing.T) {
	g := startGuest(t)
	for _, extra := range []fields{{}, {"stdin_b64": ""}} {
		if r := g.run([]string{"cat"}, extra); r.summary() != "exited 0" || r.Stdout.Bytes != 0 {
			t.Fatal(r.summary())
		}
	}
}

func TestStdinArrivesExactly(t *testing.T) {
	g := startGuest(t)
	random := rand.New(rand.NewSource(1))
	for _, size := range []int{1, 64 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 12 << 20} {
		data := make([]byte, size)
		random.Read(data)
		r := g.run([]string{"sha256sum"}, fields{"stdin_b64": base64.StdEncoding.EncodeToString(data)})
		if !strings.HasPrefix(string(r.Stdout.Head), digest(data)) {
			t.Fatalf("%d bytes: %s %q", size, r.summary(), r.Stdout.Head)
		}
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func TestFiftyMebibytesOfStdinInPiecesArriveExactly(t *testing.T) {
	g := startGuest(t)
	data := make([]byte, 50<<20)
	rand.New(rand.NewSource(2)).Read(data)
	r := g.start([]string{"sha256sum"}, fields{"stdin_open": true})
	path := "/v1/execs/" + r.ExecID + "/stdin"
	const step = 7<<20 + 13
	for at := 0; at < len(data); at += step {
		end := min(at+step, len(data))
		from := max(at-1000, 0) // bytes already taken are skipped
		a := g.send("POST", fmt.Sprintf("%s?offset=%d", path, from), bytes.NewReader(data[from:end]))
		if a.status != 200 || int(a.json(t)["offset"].(float64)) != end {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if a := g.send("POST", fmt.Sprintf("%s?offset=%d", path, len(data)+1), strings.NewReader("x")); a.code(t) != "409 conflict" {
		t.Fatalf("a gap: %s", a.body)
	}
	g.send("POST", path+"?eof=1", nil)
	if r := g.look(r.ExecID, 20); !strings.HasPrefix(string(r.Stdout.Head), digest(data)) {
		t.Fatalf("%s %q", r.summary(), r.Stdout.Head)
	}
	if a := g.send("POST", path, strings.NewReader("x")); a.code(t) != "410 gone" {
		t.Fatalf("after the end: %s", a.body)
	}
}

func TestStdinThatTheCommandClosedIsGone(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sh", "-c", "exec <&-; echo closed; sleep 3005"}, fields{"stdin_open": true})
	a := g.attach(r.ExecID, "")
	a.next()
	a.next() // "closed"
	if a := g.send("POST", "/v1/execs/"+r.ExecID+"/stdin", strings.NewReader("x")); a.code(t) != "410 gone" {
		t.Fatalf("%s", a.body)
	}
}

func TestKillEndsEverythingButTheGuest(t *testing.T) {
	g := startGuest(t)
	g.sh("setsid sleep 3006 >/dev/null 2>&1 &")
	running := g.start([]string{"sleep", "3006"})
	if a := g.post("/v1/kill", fields{}); a.json(t)["killed"] != 1.0 {
		t.Fatalf("%s", a.body)
	}
	if r := g.look(running.ExecID, 0); r.summary() != "killed KILL" {
		t.Fatal(r.summary())
	}
	if len(alive("sleep 3006")) != 0 {
		t.Fatal("processes are left")
	}
	if r := g.sh("exit 3"); r.summary() != "exited 3" {
		t.Fatal(r.summary())
	}
}

func TestSignalOfACallerMakesTheOutcomeKilled(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sleep", "3007"})
	if a := g.post("/v1/execs/"+r.ExecID+"/signal", fields{"signal": "TERM"}); a.json(t)["delivered"] != true {
		t.Fatalf("%s", a.body)
	}
	if r := g.look(r.ExecID, 5); r.summary() != "killed TERM" {
		t.Fatal(r.summary())
	}
	if a := g.post("/v1/execs/"+r.ExecID+"/signal", fields{"signal": "TERM"}); a.json(t)["delivered"] != false || a.json(t)["state"] != "ended" {
		t.Fatalf("%s", a.body)
	}
	r = g.start([]string{"sh", "-c", "trap 'exit 33' USR1; echo ready; while :; do sleep 0.05; done"})
	a := g.attach(r.ExecID, "")
	a.next()
	a.next()
	a.write(frameJSON, []byte(`{"signal":"USR1"}`))
	if r := g.look(r.ExecID, 5); r.summary() != "exited 33" {
		t.Fatal(r.summary())
	}
	if a := g.post("/v1/execs/"+r.ExecID+"/signal", fields{"signal": "NOPE"}); a.code(t) != "422 bad_request" {
		t.Fatalf("%s", a.body)
	}
}

func TestOrphansAreReapedAndLeaveNoZombies(t *testing.T) {
	g := startGuest(t)
	r := g.sh("i=0; while [ $i -lt 500 ]; do (sleep 0.05 &); (true & true &) & i=$((i+1)); done; exit 0", fields{"timeout_s": 30})
	if r.summary() != "exited 0" {
		t.Fatal(r.summary())
	}
	eventually(t, "no child of the guest is left", func() bool {
		return len(scanProcesses().below(map[int]bool{g.cmd.Process.Pid: true})) == 0 && zombies(g.cmd.Process.Pid) == 0
	})
}

func zombies(parent int) (n int) {
	for _, entry := range scanProcesses() {
		if entry.parent == parent && entry.state == 'Z' {
			n++
		}
	}
	return n
}

func TestDescriptorsAndGoroutinesReturnAfterManyCommands(t *testing.T) {
	g := startGuest(t)
	g.sh("true")
	before := descriptors(t, g)
	for range 200 {
		g.sh("echo x; cat", fields{"stdin_b64": "eA=="})
		g.run([]string{"no-such-program"})
	}
	eventually(t, "descriptors are closed", func() bool { return descriptors(t, g) <= before+3 })
}

func descriptors(t testing.TB, g *testGuest) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
	if err != nil {
		t.Skip("the guest's descriptors cannot be seen without root: it is not dumpable")
	}
	return len(entries)
}

func TestCommandInheritsNothingOfTheGuest(t *testing.T) {
	g := startGuest(t)
	r := g.run([]string{"sh", "-c", "ls /proc/$$/fd; grep -E '^Sig(Blk|Ign)' /proc/self/status; cat /proc/self/oom_score_adj; ps -o pid= -o sid= -o pgid= -p $$ | awk '{print ($1==$2 && $2==$3)}'"})
	want := "0\n1\n2\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n500\n1\n"
	if string(r.Stdout.Head) != want {
		t.Fatalf("%q, want %q", r.Stdout.Head, want)
	}
}

func TestOutputBeyondTheLimitKeepsHeadAndTail(t *testing.T) {
	g := startGuest(t)
	r := g.sh("seq 1 100000; exit 3", fields{"output_limit_bytes": 1000})
	whole := new(bytes.Buffer)
	for i := 1; i <= 100000; i++ {
		fmt.Fprintf(whole, "%d\n", i)
	}
	all := whole.Bytes()
	if r.summary() != "exited 3" || r.Stdout.Bytes != int64(len(all)) || !bytes.Equal(r.Stdout.Head, all[:500]) ||
		!bytes.Equal(r.Stdout.Tail, all[len(all)-500:]) || r.Stdout.Gap != int64(len(all)-1000) {
		t.Fatalf("%s %d %d %d %d", r.summary(), r.Stdout.Bytes, len(r.Stdout.Head), len(r.Stdout.Tail), r.Stdout.Gap)
	}
	path := "/v1/execs/" + r.ExecID + "/output?stream=stdout"
	if a := g.send("GET", path+"&offset=100&limit=50", nil); string(a.body) != string(all[100:150]) || a.header.Get("X-Next-Offset") != "150" || a.header.Get("X-Ended") != "0" {
		t.Fatalf("%q %v", a.body, a.header)
	}
	a := g.send("GET", path+"&offset=5000", nil)
	if a.code(t) != "416 range" || !strings.Contains(string(a.body), fmt.Sprintf(`"kept":[[0,500],[%d,%d]]`, len(all)-500, len(all))) {
		t.Fatalf("%s", a.body)
	}
	a = g.send("GET", fmt.Sprintf("%s&offset=%d", path, len(all)-500), nil)
	if !bytes.Equal(a.body, all[len(all)-500:]) || a.header.Get("X-Ended") != "1" {
		t.Fatalf("%d %v", len(a.body), a.header)
	}
}

func TestOutputWaitsForMore(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"cat"}, fields{"stdin_open": true})
	got := make(chan answer, 1)
	go func() { got <- g.send("GET", "/v1/execs/"+r.ExecID+"/output?offset=0&wait_s=10", nil) }()
	g.send("POST", "/v1/execs/"+r.ExecID+"/stdin", strings.NewReader("hello"))
	if a := <-got; string(a.body) != "hello" || a.header.Get("X-Ended") != "0" {
		t.Fatalf("%q", a.body)
	}
	go func() { got <- g.send("GET", "/v1/execs/"+r.ExecID+"/output?offset=5&wait_s=10", nil) }()
	g.send("POST", "/v1/execs/"+r.ExecID+"/stdin?eof=1", nil)
	if a := <-got; len(a.body) != 0 || a.header.Get("X-Ended") != "1" {
		t.Fatalf("%q %v", a.body, a.header)
	}
}

func TestListIsNewestFirstWithoutOutput(t *testing.T) {
	g := startGuest(t)
	g.sh("echo one")
	g.sh("echo three")
	a := g.send("GET", "/v1/execs", nil)
	if !strings.Contains(string(a.body), `{"execs":[{"exec_id":"e2"`) || !strings.Contains(string(a.body), `"stdout":{"bytes":6,"gap_bytes":0}`) ||
		strings.Contains(string(a.body), "head_b64") {
		t.Fatalf("%s", a.body)
	}
	if a := g.send("GET", "/v1/execs/e1?output=0", nil); strings.Contains(string(a.body), "head_b64") {
		t.Fatalf("%s", a.body)
	}
}

func TestCommandOfAnotherUserHasHisRightsAlone(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root")
	}
	g := startGuest(t)
	r := g.sh("id -u; id -G; grep CapEff /proc/self/status; echo $HOME $USER", fields{"user": "nobody"})
	if string(r.Stdout.Head) != "65534\n65534\nCapEff:\t0000000000000000\n/nonexistent nobody\n" {
		t.Fatalf("%q", r.Stdout.Head)
	}
	if r := g.sh("id -u; id -g", fields{"user": "1234:55"}); string(r.Stdout.Head) != "1234\n55\n" {
		t.Fatalf("%q", r.Stdout.Head)
	}
}

func TestCapabilitiesNoneLeavesNone(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "l", "capabilities": "none"})
	r := g.sh("grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status")
	if string(r.Stdout.Head) != "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n" {
		t.Fatalf("%q", r.Stdout.Head)
	}
}

func TestSandboxKeepsAtMostItsBoundOfOutput(t *testing.T) {
	g := startGuest(t)
	first := g.sh("head -c 6000000 /dev/zero", fields{"output_limit_bytes": 8 << 20})
	for range 12 {
		g.sh("head -c 6000000 /dev/zero", fields{"output_limit_bytes": 8 << 20})
	}
	r := g.look(first.ExecID, 0)
	if !r.Dropped || r.Stdout.Bytes != 6000000 || len(r.Stdout.Head) != 0 || r.summary() != "exited 0" {
		t.Fatalf("dropped=%v %d", r.Dropped, len(r.Stdout.Head))
	}
	if a := g.send("GET", "/v1/execs/"+first.ExecID+"/output?offset=0", nil); a.code(t) != "416 range" {
		t.Fatalf("%s", a.body)
	}
}

func TestTimeSpentIsTold(t *testing.T) {
	g := startGuest(t)
	began := time.Now()
	r := g.sh("sleep 0.2")
	if r.DurationS < 0.2 || r.DurationS > time.Since(began).Seconds() {
		t.Fatal(r.DurationS)
	}
}
