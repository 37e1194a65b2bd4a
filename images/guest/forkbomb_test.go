package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const bombLimit = 120

// pidsGroup is a cgroup v1 group with a pids limit that was read back. It is gone after the test,
// with all in it.
func pidsGroup(t *testing.T) string {
	t.Helper()
	if !isRoot() {
		t.Skip("a pids limit needs root")
	}
	group := fmt.Sprintf("/sys/fs/cgroup/pids/guest-test-%d", os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no cgroup v1 pids group can be made here: %v", err)
	}
	empty := func() {
		for range 200 {
			procs, _ := os.ReadFile(group + "/cgroup.procs")
			if len(procs) == 0 {
				break
			}
			for _, text := range strings.Fields(string(procs)) {
				if pid, err := strconv.Atoi(text); err == nil && pid != os.Getpid() {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	watchdog := time.AfterFunc(30*time.Second, empty)
	t.Cleanup(func() {
		watchdog.Stop()
		empty()
		if err := os.Remove(group); err != nil {
			t.Errorf("the group is left over: %v", err)
		}
	})
	must(t, os.WriteFile(group+"/pids.max", []byte(strconv.Itoa(bombLimit)), 0o644))
	if back, _ := os.ReadFile(group + "/pids.max"); strings.TrimSpace(string(back)) != strconv.Itoa(bombLimit) {
		t.Skipf("the pids limit reads back as %q", back)
	}
	return group
}

func TestForkBombNeitherKillsTheGuestNorOutlivesItsDeadline(t *testing.T) {
	group := pidsGroup(t)
	g := startGuest(t)
	must(t, os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(g.cmd.Process.Pid)), 0o644))
	if where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", g.cmd.Process.Pid)); !strings.Contains(string(where), "guest-test-") {
		t.Skip("the guest is not in the group")
	}
	bomb := g.start([]string{"bash", "-c", ":(){ :|:& };:; sleep 60"}, fields{"timeout_s": 2})
	refused := 0
	for range 20 {
		switch r := g.run([]string{"true"}, fields{"timeout_s": 5}); r.summary() {
		case "exited 0":
		case "start_failed pids":
			refused++
		default:
			t.Errorf("beside the bomb: %s (%s)", r.summary(), r.Detail)
		}
		time.Sleep(50 * time.Millisecond) // spread over the bomb's life
	}
	if r := g.look(bomb.ExecID, 20); r.Outcome != "timeout" && r.Outcome != "exited" {
		t.Errorf("the bomb: %s", r.summary())
	}
	g.post("/v1/kill", fields{})
	if r := g.sh("exit 3"); r.summary() != "exited 3" {
		t.Errorf("after the bomb: %s", r.summary())
	}
	t.Logf("%d of 20 commands were refused for want of processes", refused)
}
