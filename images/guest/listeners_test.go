package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// listenOn sets the list and returns the ports by name.
func (g *testGuest) listenOn(orders ...listenerOrder) map[string]listenerOrder {
	g.t.Helper()
	if orders == nil {
		orders = []listenerOrder{}
	}
	data, _ := json.Marshal(fields{"listeners": orders})
	a := g.send("PUT", "/v1/listeners", bytes.NewReader(data))
	var said struct{ Listeners []listenerOrder }
	if a.status != 200 || json.Unmarshal(a.body, &said) != nil || len(said.Listeners) != len(orders) {
		g.t.Fatalf("%d %s", a.status, a.body)
	}
	found := map[string]listenerOrder{}
	for _, l := range said.Listeners {
		found[l.Name] = l
	}
	return found
}

func dialPort(t testing.TB, port int) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn.(*net.TCPConn)
}

func TestAcceptIsTheNextConnectionToAListener(t *testing.T) {
	g := startGuest(t)
	port := g.listenOn(listenerOrder{Name: "out"})["out"].Port
	inside := dialPort(t, port) // before anybody waits: it queues
	_, _ = inside.Write([]byte("question"))
	_ = inside.CloseWrite()
	outside := g.upgrade("/v1/accept")
	if outside.header.Get("X-Listener") != "out" {
		t.Errorf("%v", outside.header)
	}
	if got, err := io.ReadAll(outside); string(got) != "question" || err != nil {
		t.Fatalf("%q %v", got, err)
	}
	_, _ = outside.Write([]byte("answer"))
	_ = outside.CloseWrite()
	if got, err := io.ReadAll(inside); string(got) != "answer" || err != nil {
		t.Errorf("%q %v", got, err)
	}
}

func TestAcceptsThatWaitGetOneConnectionEach(t *testing.T) {
	g := startGuest(t)
	ports := g.listenOn(listenerOrder{Name: "a"}, listenerOrder{Name: "b"})
	names := make(chan string, 100)
	var all sync.WaitGroup
	for range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			u, _ := g.request("/v1/accept")
			defer u.Close()
			text, _ := io.ReadAll(u)
			names <- u.header.Get("X-Listener") + string(text)
		}()
	}
	for i := range 100 {
		name := []string{"a", "b"}[i%2]
		inside := dialPort(t, ports[name].Port)
		fmt.Fprintf(inside, "%s%d", name, i)
		inside.Close()
	}
	all.Wait()
	seen := map[string]bool{}
	for range 100 {
		seen[<-names] = true
	}
	for i := range 100 {
		name := []string{"a", "b"}[i%2]
		if want := fmt.Sprintf("%s%s%d", name, name, i); !seen[want] {
			t.Errorf("no %s", want)
		}
	}
}

func TestListIsTheWholeTruth(t *testing.T) {
	g := startGuest(t)
	first := g.listenOn(listenerOrder{Name: "stays"}, listenerOrder{Name: "goes"})
	waits := dialPort(t, first["goes"].Port)
	second := g.listenOn(listenerOrder{Name: "stays", Port: first["stays"].Port}, listenerOrder{Name: "comes"})
	if second["stays"] != first["stays"] {
		t.Errorf("%v is not %v", second["stays"], first["stays"])
	}
	if _, err := waits.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that nobody took outlives its listener")
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", first["goes"].Port)); err == nil {
		t.Error("a listener that is no longer named listens")
	}
	if again := g.listenOn(listenerOrder{Name: "stays"}, listenerOrder{Name: "comes"}); again["comes"] != second["comes"] {
		t.Errorf("%v is not %v", again["comes"], second["comes"])
	}
	g.listenOn()
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", second["stays"].Port)); err == nil {
		t.Error("an empty list leaves a listener")
	}
}

func TestListenerThatCannotBeIsToldBesideTheOthers(t *testing.T) {
	g := startGuest(t)
	taken := serveTCP(t, "127.0.0.1:0", echo)
	said := g.listenOn(listenerOrder{Name: "taken", Port: taken}, listenerOrder{Name: "free"})
	if said["taken"].Error != "in_use" || said["free"].Error != "" || said["free"].Port == 0 {
		t.Errorf("%v", said)
	}
}

func TestListsThatAreRefused(t *testing.T) {
	g := startGuest(t)
	for _, body := range []string{
		`{"listeners":[{"name":"","port":0}]}`,
		`{"listeners":[{"name":"a b","port":0}]}`,
		`{"listeners":[{"name":"a","port":65536}]}`,
		`{"listeners":[{"name":"a","port":-1}]}`,
		`{"listeners":[{"name":"a","port":0},{"name":"a","port":1}]}`,
		`{"listeners":[{"name":"a","host":"0.0.0.0"}]}`,
	} {
		if got := g.send("PUT", "/v1/listeners", strings.NewReader(body)).code(t); got != "422 bad_request" {
			t.Errorf("%s: %s", body, got)
		}
	}
	if got := g.send("GET", "/v1/accept", nil).code(t); got != "422 bad_request" {
		t.Errorf("accept without Upgrade: %s", got)
	}
}

func TestAcceptThatDiesWhileItWaitsLosesNothing(t *testing.T) {
	g := startGuest(t)
	port := g.listenOn(listenerOrder{Name: "out"})["out"].Port
	for i := range 30 {
		dead, err := net.Dial("unix", g.socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(dead, "GET /v1/accept HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: sandbox-bytes\r\n\r\n")
		if i%2 == 0 { // let it be heard; the other half of them die before, or while they are
			g.send("GET", "/v1/hello", nil)
		}
		dead.Close()
		inside := dialPort(t, port)
		fmt.Fprintf(inside, "%d", i)
		inside.Close()
		living := g.upgrade("/v1/accept")
		if got, _ := io.ReadAll(living); string(got) != fmt.Sprint(i) {
			t.Fatalf("%q is not connection %d", got, i)
		}
		living.Close()
	}
}

func TestMoreConnectionsThanMayQueueAreServedInTheEnd(t *testing.T) {
	g := startGuest(t)
	port := g.listenOn(listenerOrder{Name: "out"})["out"].Port
	const many = 3 * mostQueued
	for i := range many {
		inside := dialPort(t, port)
		fmt.Fprintf(inside, "%d", i)
		_ = inside.CloseWrite()
	}
	seen := map[string]bool{}
	for range many {
		outside := g.upgrade("/v1/accept")
		text, _ := io.ReadAll(outside)
		seen[string(text)] = true
		outside.Close()
	}
	if len(seen) != many {
		t.Errorf("%d of %d", len(seen), many)
	}
}

func TestQueuedConnectionsExpire(t *testing.T) {
	table := newListenerTable()
	said := table.set([]listenerOrder{{Name: "out"}})
	defer table.set(nil)
	conn := dialPort(t, said[0].Port)
	var queued *arrival
	eventually(t, "it queues", func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		if len(table.queue) == 1 {
			queued = table.queue[0]
		}
		return queued != nil
	})
	queued.expires.Reset(time.Millisecond) // as if its time were nearly over
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("it is still open")
	}
	eventually(t, "its slot is free", func() bool { return len(table.slots) == 0 })
}

func BenchmarkAccept(b *testing.B) {
	g := startGuest(b)
	port := g.listenOn(listenerOrder{Name: "out"})["out"].Port
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		ready := make(chan *upgraded)
		go func() {
			u, _ := g.request("/v1/accept")
			ready <- u
		}()
		began := time.Now()
		inside := dialPort(b, port)
		u := <-ready
		took = append(took, time.Since(began))
		inside.Close()
		u.Close()
	}
	report(b, took)
}
