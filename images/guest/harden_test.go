package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// failingListener fails a few times before it accepts.
type failingListener struct {
	net.Listener
	failures []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		return nil, err
	}
	ours, theirs := net.Pipe()
	theirs.Close()
	return ours, nil
}

func TestNoShortageEndsTheListener(t *testing.T) {
	l := patientListener{&failingListener{failures: []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENOMEM}}}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAClosedListenerEnds(t *testing.T) {
	closed := fmt.Errorf("accept: %w", net.ErrClosed)
	if _, err := (patientListener{&failingListener{failures: []error{closed}}}).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

func TestSignalsWithoutAHandlerAreIgnoredByTheGuestAlone(t *testing.T) {
	g := startGuest(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range unhandledSignals {
		if ignoredSignals(status)&(1<<(number-1)) == 0 {
			t.Errorf("signal %d is not ignored", number)
		}
	}
	if said := string(g.sh("grep SigIgn /proc/self/status").Stdout.Head); !strings.Contains(said, "SigIgn:\t0000000000000000") {
		t.Errorf("a command ignores signals: %s", said)
	}
}

func TestNobodyInsideHasAllTheIdsOfTheGuest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user has one group")
	}
	g := startGuest(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", g.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, file := range threads {
		if status, err := os.ReadFile(file); err == nil && !strings.Contains(string(status), "Gid:\t0\t0\t65533\t0\n") {
			t.Errorf("%s: %s", file, status)
		}
	}
	if said := string(g.sh("grep Gid /proc/self/status").Stdout.Head); said != "Gid:\t0\t0\t0\t0\n" {
		t.Errorf("a command has %s", said)
	}
}

func TestCoresThatWouldLeaveTheSandboxAreToldByTheirPattern(t *testing.T) {
	for pattern, leaves := range map[string]bool{
		"core\n": false, "": false, "/tmp/core.%p\n": false,
		"|/usr/lib/systemd/systemd-coredump %P\n": true, "@/run/cores.socket\n": true,
	} {
		if leavesTheSandbox([]byte(pattern)) != leaves {
			t.Errorf("%q", pattern)
		}
	}
}
