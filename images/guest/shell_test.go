package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runIn runs text in the shell s1 with 5 s time.
func (g *testGuest) runIn(text string, extra ...fields) execRecord {
	g.t.Helper()
	a := g.runRaw(text, extra...)
	if a.status != 200 {
		g.t.Fatalf("%q: %d %s", text, a.status, a.body)
	}
	return readRecord(g.t, a.body)
}

func (g *testGuest) runRaw(text string, extra ...fields) answer {
	g.t.Helper()
	body := fields{"exec_id": fmt.Sprintf("r%d", g.serial.Add(1)), "fingerprint": "f", "text": text, "timeout_s": 5, "wait": true}
	for _, more := range extra {
		for name, value := range more {
			body[name] = value
		}
	}
	return g.post("/v1/shells/s1/run", body)
}

// eachShell runs a test with bash and with a plain sh.
func eachShell(t *testing.T, test func(t *testing.T, g *testGuest)) {
	for _, kind := range []string{"", "/bin/sh"} {
		t.Run("shell"+kind, func(t *testing.T) {
			var args []string
			if kind != "" {
				args = []string{"--shell", kind}
			}
			g := startGuest(t, args...)
			g.openShell()
			test(t, g)
		})
	}
}

func (g *testGuest) openShell() {
	g.t.Helper()
	if a := g.post("/v1/shells", fields{"shell_id": "s1"}); a.status != 200 {
		g.t.Fatalf("%s", a.body)
	}
}

func (g *testGuest) shellState() string {
	g.t.Helper()
	return g.send("GET", "/v1/shells/s1", nil).json(g.t)["state"].(string)
}

func TestShellRemembersDirectoryVariablesFunctionsAndStatus(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		g.runIn("cd /usr; X=5; f() { echo f $1; }; export Y=6")
		r := g.runIn("echo $PWD $X; f a; printenv Y; false")
		if string(r.Stdout.Head) != "/usr 5\nf a\n6\n" || r.summary() != "exited 1" {
			t.Fatalf("%q %s", r.Stdout.Head, r.summary())
		}
		if r := g.runIn("echo $?"); string(r.Stdout.Head) != "1\n" || r.summary() != "exited 0" {
			t.Fatalf("%q", r.Stdout.Head)
		}
		if r := g.runIn("(exit 77)"); r.summary() != "exited 77" {
			t.Fatal(r.summary())
		}
		if r := g.runIn("cat; echo err >&2"); r.summary() != "exited 0" || string(r.Stderr.Head) != "err\n" {
			t.Fatalf("%s %q", r.summary(), r.Stderr.Head)
		}
		if g.shellState() != "idle" {
			t.Fatal(g.shellState())
		}
	})
}

func TestHereDocumentsAndUnterminatedTextNeverHangAShell(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		file := filepath.Join(t.TempDir(), "f")
		if r := g.runIn("cat > " + file + " <<'X'\n1\n2\n3\nX"); r.summary() != "exited 0" {
			t.Fatal(r.summary())
		}
		if data, _ := os.ReadFile(file); string(data) != "1\n2\n3\n" {
			t.Fatalf("%q", data)
		}
		for _, text := range []string{"echo 'a", "echo \"a", "if true; then", "echo $(", "}", "fi"} {
			if r := g.runIn(text); r.Outcome != "exited" || *r.ExitCode == 0 || r.ShellEnded {
				t.Fatalf("%q: %s, ended=%v", text, r.summary(), r.ShellEnded)
			}
		}
		g.runIn("cat <<X\nabc") // a warning at most; what counts is that the next one runs
		if r := g.runIn("echo ok"); string(r.Stdout.Head) != "ok\n" || r.DurationS > 2 {
			t.Fatalf("%q %g", r.Stdout.Head, r.DurationS)
		}
	})
}

func TestExitAndSetEEndTheShellWithItsTrueStatus(t *testing.T) {
	for text, status := range map[string]string{"exit 3": "exited 3", "set -e; false": "exited 1", "kill -9 $$": "signaled KILL", "exec true": "exited 0"} {
		eachShell(t, func(t *testing.T, g *testGuest) {
			r := g.runIn(text)
			if r.summary() != status || !r.ShellEnded {
				t.Fatalf("%s: %s, ended=%v", text, r.summary(), r.ShellEnded)
			}
			began := time.Now()
			a := g.runRaw("echo b")
			if a.code(t) != "409 conflict" || !strings.Contains(string(a.body), `"shell_ended":true`) || time.Since(began) > 2*time.Second {
				t.Fatalf("%s", a.body)
			}
			if g.shellState() != "ended" {
				t.Fatal(g.shellState())
			}
			if a := g.post("/v1/shells", fields{"shell_id": "s2"}); a.json(t)["state"] != "idle" {
				t.Fatalf("%s", a.body)
			}
		})
	}
}

func TestSetEWithoutFailureKeepsTheShell(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		if r := g.runIn("set -e; true"); r.summary() != "exited 0" || r.ShellEnded {
			t.Fatal(r.summary())
		}
		if r := g.runIn("echo still"); string(r.Stdout.Head) != "still\n" {
			t.Fatalf("%q", r.Stdout.Head)
		}
		if r := g.runIn("false; echo not"); r.summary() != "exited 1" || !r.ShellEnded || r.Stdout.Bytes != 0 {
			t.Fatalf("%s %q", r.summary(), r.Stdout.Head)
		}
	})
}

func TestTracedTextShowsNothingOfOurs(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		r := g.runIn("set -x")
		r = g.runIn("echo hi")
		if string(r.Stdout.Head) != "hi\n" || strings.Contains(string(r.Stderr.Head), "printf") || strings.Contains(string(r.Stderr.Head), "eval") {
			t.Fatalf("%q", r.Stderr.Head)
		}
	})
}

func TestForegroundIsInterruptedAtTheDeadlineAndTheShellLives(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		g.runIn("Z=9; sleep 3010 &")
		r := g.runIn("echo a; sleep 3011; echo b", fields{"timeout_s": 0.3})
		if r.Outcome != "timeout" || !r.Interrupted || r.ShellEnded || !strings.HasPrefix(string(r.Stdout.Head), "a\n") {
			t.Fatalf("%s %q %v", r.summary(), r.Stdout.Head, r.ShellEnded)
		}
		if len(alive("sleep 3011")) != 0 || len(alive("sleep 3010")) != 1 {
			t.Fatal("the wrong processes are dead")
		}
		if r := g.runIn("echo $Z"); string(r.Stdout.Head) != "9\n" {
			t.Fatalf("%q", r.Stdout.Head)
		}
		// What ignores the interrupt is killed.
		r = g.runIn("sh -c \"trap '' INT; sleep 3012; sleep 3012\"", fields{"timeout_s": 0.2})
		if r.Outcome != "timeout" || r.ShellEnded || len(alive("sleep 3012")) != 0 {
			t.Fatalf("%s %v %v", r.summary(), r.ShellEnded, alive("sleep 3012"))
		}
	})
}

func TestShellThatCannotBeBroughtBackIsKilled(t *testing.T) {
	g := startGuest(t)
	g.openShell()
	r := g.runIn("while :; do :; done", fields{"timeout_s": 0.2})
	if r.summary() != "timeout KILL" || !r.ShellEnded {
		t.Fatalf("%s %v", r.summary(), r.ShellEnded)
	}
}

func TestOutputOfBackgroundJobsIsNotTheNextRuns(t *testing.T) {
	g := startGuest(t)
	g.openShell()
	r := g.runIn("(sleep 0.2; echo late) & echo now")
	if string(r.Stdout.Head) != "now\n" || !r.Survivors {
		t.Fatalf("%q %v", r.Stdout.Head, r.Survivors)
	}
	time.Sleep(400 * time.Millisecond) // the late line must be in the pipe: nothing tells when it is
	if r := g.runIn("echo next"); string(r.Stdout.Head) != "next\n" {
		t.Fatalf("%q", r.Stdout.Head)
	}
}

func TestOneRunAtATimeAndTheSameIDAttaches(t *testing.T) {
	g := startGuest(t)
	g.openShell()
	a := g.runRaw("sleep 0.5; exit 0 | cat; (exit 6)", fields{"exec_id": "same", "wait": false})
	if a.status != 202 || g.shellState() != "busy" {
		t.Fatalf("%s", a.body)
	}
	if a := g.runRaw("echo"); a.code(t) != "409 conflict" {
		t.Fatalf("%s", a.body)
	}
	if r := g.runIn("anything", fields{"exec_id": "same"}); r.summary() != "exited 6" {
		t.Fatal(r.summary())
	}
}

func TestBigOutputAndTextInAShellAreExact(t *testing.T) {
	eachShell(t, func(t *testing.T, g *testGuest) {
		for range 5 {
			if r := g.runIn("head -c 300003 /dev/zero"); r.Stdout.Bytes != 300003 {
				t.Fatalf("%d", r.Stdout.Bytes)
			}
		}
		text := "echo '" + strings.Repeat("x'\\''y\n", 30_000) + "' | wc -c; echo END"
		if r := g.runIn(text); string(r.Stdout.Head) != "120001\nEND\n" {
			t.Fatalf("%q %q", r.Stdout.Head, r.Stderr.Head)
		}
	})
}

func TestKilledRunAndDeletedShellLeaveNothing(t *testing.T) {
	g := startGuest(t)
	g.openShell()
	r := readRecord(t, g.runRaw("sleep 3013", fields{"wait": false}).body)
	// Before the shell has started it, a signal is for the shell.
	eventually(t, "the run has begun", func() bool { return len(alive("sleep 3013")) == 1 })
	g.post("/v1/execs/"+r.ExecID+"/signal", fields{"signal": "KILL"})
	if r := g.look(r.ExecID, 10); r.Outcome != "killed" || len(alive("sleep 3013")) != 0 {
		t.Fatal(r.summary())
	}
	g.runIn("sleep 3014 &")
	if a := g.send("DELETE", "/v1/shells/s1", nil); a.status != 204 {
		t.Fatalf("%s", a.body)
	}
	if len(alive("sleep 3014")) != 0 {
		t.Fatal("a job lives on")
	}
	if a := g.send("GET", "/v1/shells/s1", nil); a.code(t) != "404 not_found" {
		t.Fatalf("%s", a.body)
	}
}

func TestShellsAreBounded(t *testing.T) {
	g := startGuest(t)
	for i := range mostShells {
		if a := g.post("/v1/shells", fields{"shell_id": fmt.Sprintf("n%d", i)}); a.status != 200 {
			t.Fatalf("%s", a.body)
		}
	}
	if a := g.post("/v1/shells", fields{"shell_id": "more"}); a.code(t) != "503 busy" {
		t.Fatalf("%s", a.body)
	}
}

func TestShellStartFailuresAreTyped(t *testing.T) {
	g := startGuest(t)
	if a := g.post("/v1/shells", fields{"shell_id": "s1", "cwd": "/nope"}); a.code(t) != "422 bad_request" || !strings.Contains(string(a.body), "bad_cwd") {
		t.Fatalf("%s", a.body)
	}
}
