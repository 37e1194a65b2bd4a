package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// aWaitingKernel is one that begins to listen once its returned gate is there; prefix is what its sockets
// are to be called.
func (g *testGuest) aWaitingKernel(id string) (prefix, gate string) {
	g.t.Helper()
	self, _ := os.Executable()
	folder := g.t.TempDir()
	where, gate := folder+"/where", folder+"/gate"
	script := `echo "$2" > "$0.new"; mv "$0.new" "$0"; while [ ! -e "$1" ]; do sleep 0.01; done; exec "$3" "$2"`
	a := g.call("PUT", "/v1/kernels/"+id, map[string]any{
		"argv": []string{"sh", "-c", script, where, gate, connectionFile, self},
		"env":  map[string]string{"SANDBOX_GUEST_TEST_KERNEL": "1"},
	})
	if a.status != 201 {
		g.t.Fatalf("%d %s", a.status, a.body)
	}
	var path []byte
	for until := time.Now().Add(10 * time.Second); len(path) == 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
		path, _ = os.ReadFile(where)
	}
	var facts struct{ IP string }
	data, err := os.ReadFile(strings.TrimSpace(string(path)))
	if err != nil || json.Unmarshal(data, &facts) != nil {
		g.t.Fatal(err)
	}
	return facts.IP, gate
}

func (g *testGuest) endOf(id string) map[string]any {
	all := g.attachKernel(id, 0).until(func(s said) bool { return s.json["ended"] != nil })
	return all[len(all)-1].json["ended"].(map[string]any)
}

func TestWhoListensInAKernelsPlaceIsToldNothing(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	prefix, _ := g.aWaitingKernel("k")
	listener, err := net.Listen("unix", fmt.Sprintf("%s-%d", prefix, channelIOPub))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 100)); n > 0 || err == nil || os.IsTimeout(err) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if ended := g.endOf("k"); ended["outcome"] != outcomeSignaled || ended["from_inside"] != true {
		t.Errorf("%v", ended)
	}
}

func TestAKernelWhoseNameIsTakenEndsByTheDoingOfWhoTookIt(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	prefix, gate := g.aWaitingKernel("k")
	listener, err := net.Listen("unix", fmt.Sprintf("%s-%d", prefix, channelControl))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ended := g.endOf("k"); ended["outcome"] != outcomeExited || ended["from_inside"] != true {
		t.Errorf("%v", ended)
	}
}

func TestAKernelThatListensByAProgramThatItStartedIsItself(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	self, _ := os.Executable()
	a := g.call("PUT", "/v1/kernels/k", map[string]any{
		"argv": []string{"sh", "-c", `"$0" "$1"; exit 3`, self, connectionFile},
		"env":  map[string]string{"SANDBOX_GUEST_TEST_KERNEL": "1"},
	})
	if a.status != 201 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	line := g.attachKernel("k", 0)
	line.send("one", `{"say": 1}`)
	line.until(idleAfter("one"))
}
