package main

import (
	"os"
	"strings"
	"testing"
)

func TestTheBaseIsTheGuestsOwnEnvironmentWhereThatIsAsked(t *testing.T) {
	t.Setenv("IMAGE_SAYS", "hello there")
	t.Setenv("TERM", "vt100")
	t.Setenv("HOME", "/of/the/guest")
	t.Setenv("HOSTNAME", "somebody-else")
	const ask = `echo "$IMAGE_SAYS|$TERM|$HOME|$HOSTNAME|$B"`
	without, with := startGuest(t), startGuest(t, "--inherit-env")
	claim := fields{"lease_id": "l", "env": map[string]string{"B": "claimed"}}
	for g, want := range map[*testGuest]string{without: "||", with: "hello there||"} {
		g.post("/v1/claim", claim)
		said := strings.TrimSpace(string(g.sh(ask).Stdout.Head))
		if !strings.HasPrefix(said, want) || strings.Contains(said, "/of/the/guest") ||
			strings.Contains(said, "somebody-else") || !strings.HasSuffix(said, "|claimed") {
			t.Errorf("%q", said)
		}
	}
	over := with.sh(ask, fields{"env": map[string]string{"IMAGE_SAYS": "mine"}})
	if !strings.HasPrefix(string(over.Stdout.Head), "mine|") {
		t.Errorf("%q", over.Stdout.Head)
	}
}

func TestWhatTheGuestWouldReadItselfReachesCommandsByItsName(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	t.Setenv(keptPrefix+"GOMEMLIMIT", "lots")
	base := baseEnv(true)
	if base["GOMEMLIMIT"] != "lots" || base[keptPrefix+"GOMEMLIMIT"] != "" {
		t.Errorf("%v", base)
	}
}

func TestTheTrueNameOfTheHostIsInherited(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("HOSTNAME", host)
	if base := baseEnv(true); base["HOSTNAME"] != host {
		t.Errorf("%v", base)
	}
}

func TestCommandsRunAsTheUsualUserUnlessAnotherIsNamed(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root")
	}
	g := startGuest(t, "--user", "nobody")
	if who := string(g.sh("id -un").Stdout.Head); who != "nobody\n" {
		t.Errorf("before the claim: %q", who)
	}
	g.post("/v1/claim", fields{"lease_id": "l"})
	if who := string(g.sh("id -un").Stdout.Head); who != "nobody\n" {
		t.Errorf("of the claim: %q", who)
	}
	if who := string(g.sh("id -un", fields{"user": "root"}).Stdout.Head); who != "root\n" {
		t.Errorf("named by the command: %q", who)
	}
	other := startGuest(t, "--user", "nobody")
	other.post("/v1/claim", fields{"lease_id": "l", "user": "0"})
	if who := string(other.sh("id -un").Stdout.Head); who != "root\n" {
		t.Errorf("named by the claim: %q", who)
	}
}

func TestAUsualUserThatIsNotThereEndsTheGuestAtOnce(t *testing.T) {
	cmd := guestCommand("--socket", t.TempDir()+"/s", "--user", "no-such-user")
	said, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitNoUser || !strings.Contains(string(said), `there is no user "no-such-user"`) {
		t.Errorf("%v: %s", cmd.ProcessState, said)
	}
}

func TestASetUpLeavesNothingBehindButWhatItMade(t *testing.T) {
	g := startGuest(t)
	dir := openDir(t)
	setup := fields{"env": map[string]string{"ONLY": "setup"}, "workdir": dir + "/work"}
	if a := g.post("/v1/setup", setup); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if r := g.sh("echo $ONLY; touch made", fields{"exec_id": "s1"}); string(r.Stdout.Head) != "setup\n" {
		t.Fatalf("%v", r)
	}
	if a := g.post("/v1/claim", fields{"lease_id": "l"}); a.code(t) != "409 conflict" {
		t.Fatalf("claimed in the middle of its set-up: %s", a.body)
	}
	running := g.start([]string{"sleep", "3021"})
	if a := g.post("/v1/ready", fields{}); a.code(t) != "409 conflict" {
		t.Fatalf("ready while a command runs: %s", a.body)
	}
	if hello := g.send("GET", "/v1/hello", nil).json(t); hello["ready"] != false {
		t.Fatalf("%v", hello)
	}
	g.post("/v1/execs/"+running.ExecID+"/signal", fields{"signal": "KILL"})
	g.look(running.ExecID, 5)
	for range 2 { // asked again it is ready still
		if a := g.post("/v1/ready", fields{}); a.status != 200 {
			t.Fatalf("%s", a.body)
		}
	}
	if hello := g.send("GET", "/v1/hello", nil).json(t); hello["ready"] != true {
		t.Fatalf("%v", hello)
	}
	if a := g.post("/v1/setup", setup); a.code(t) != "409 conflict" {
		t.Fatalf("set up twice: %s", a.body)
	}
	if a := g.post("/v1/claim", fields{"lease_id": "l", "workdir": dir + "/work"}); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	if list := g.send("GET", "/v1/execs", nil).json(t)["execs"].([]any); len(list) != 0 {
		t.Fatalf("%v", list)
	}
	if r := g.sh("echo \"<$ONLY>\"; ls", fields{"exec_id": "s1"}); string(r.Stdout.Head) != "<>\nmade\n" {
		t.Fatalf("%q", r.Stdout.Head)
	}
}
