package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func maskOf(numbers ...int) *cpuMask {
	m := &cpuMask{size: 128}
	for _, number := range numbers {
		m.bits[number/64] |= 1 << (number % 64)
	}
	return m
}

func TestProcessorsAreChosenInTheirOrderAndRound(t *testing.T) {
	const many = int(^uint(0) >> 1)
	for _, c := range []struct {
		ask  affinity
		of   []int
		want []int
	}{
		{affinity{1, 0}, []int{0, 1}, []int{0}},
		{affinity{1, 3}, []int{0, 1}, []int{1}},
		{affinity{2, 2}, []int{3, 5, 70}, []int{3, 70}},
		{affinity{1, many}, []int{0, 1}, []int{1}},
		{affinity{2, 0}, []int{0, 1}, nil},
		{affinity{9, 1}, []int{0, 1}, nil},
		{affinity{1, 0}, []int{7}, nil},
	} {
		got := c.ask.within(maskOf(c.of...))
		if c.want == nil {
			if got != nil {
				t.Errorf("%v of %v: %v", c.ask, c.of, got.numbers())
			}
			continue
		}
		if got == nil || *got != *maskOf(c.want...) {
			t.Errorf("%v of %v: %v, want %v", c.ask, c.of, got, c.want)
		}
	}
	if (*affinity)(nil).within(maskOf(0, 1)) != nil || (&affinity{1, 0}).within(nil) != nil {
		t.Error("nothing was asked for, or nothing is known")
	}
}

// allowedIn reads a status file of /proc.
func allowedIn(text string) string {
	for _, line := range strings.Split(text, "\n") {
		if list, found := strings.CutPrefix(line, "Cpus_allowed_list:"); found {
			return strings.TrimSpace(list)
		}
	}
	return ""
}

func TestAClaimBindsAllThatCommandsStartButNotTheGuest(t *testing.T) {
	own := ownProcessors().numbers()
	if len(own) < 2 {
		t.Skip("one processor")
	}
	g := startGuest(t)
	early := g.start([]string{"sh", "-c", "sleep 3070 & wait"})
	eventually(t, "the tree", func() bool { return len(alive("sleep 3070")) == 2 })
	if a := g.post("/v1/claim", fields{"lease_id": "l", "affinity": fields{"count": 1, "first": 1}}); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	want := strconv.Itoa(own[1])
	if said := string(g.run([]string{"nproc"}).Stdout.Head); said != "1\n" {
		t.Errorf("nproc: %q", said)
	}
	if got := allowedIn(string(g.run([]string{"cat", "/proc/self/status"}).Stdout.Head)); got != want {
		t.Errorf("a command runs on %q", got)
	}
	if a := g.post("/v1/shells", fields{"shell_id": "s"}); a.status/100 != 2 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	run := readRecord(t, g.post("/v1/shells/s/run", fields{
		"exec_id": "in-shell", "fingerprint": "f", "text": "cat /proc/self/status", "wait": true}).body)
	if got := allowedIn(string(run.Stdout.Head)); got != want {
		t.Errorf("what a shell starts runs on %q", got)
	}
	for _, pid := range alive("sleep 3070") {
		status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if got := allowedIn(string(status)); got != want {
			t.Errorf("what was there before runs on %q", got)
		}
	}
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(g.cmd.Process.Pid) + "/status")
	if got := allowedIn(string(status)); got == want {
		t.Errorf("the guest runs on %q alone", got)
	}
	g.post("/v1/execs/"+early.ExecID+"/signal", fields{"signal": "KILL"})
}

func TestAClaimThatBindsNothingSensibleIsRefused(t *testing.T) {
	g := startGuest(t)
	for _, bad := range []any{fields{"count": 0, "first": 0}, fields{"count": 1, "first": -1}, fields{"count": 1, "last": 1}, 3, fields{}} {
		if a := g.post("/v1/claim", fields{"lease_id": "l", "affinity": bad}); a.code(t) != "422 bad_request" {
			t.Errorf("%v: %d %s", bad, a.status, a.body)
		}
	}
	if a := g.post("/v1/claim", fields{"lease_id": "l", "affinity": nil}); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
