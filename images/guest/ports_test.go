package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// upgraded is a connection to the guest behind a 101.
type upgraded struct {
	*net.UnixConn
	from   *bufio.Reader
	header http.Header
}

func (u *upgraded) Read(p []byte) (int, error) { return u.from.Read(p) }

// request sends a request for bytes and reads the head of its answer.
func (g *testGuest) request(target string) (*upgraded, *http.Response) {
	g.t.Helper()
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		g.t.Error(err)
		return nil, nil
	}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: sandbox-bytes\r\n\r\n", target)
	u := &upgraded{UnixConn: conn.(*net.UnixConn), from: bufio.NewReader(conn)}
	response, err := http.ReadResponse(u.from, nil)
	if err != nil {
		g.t.Error(err)
		conn.Close()
		return nil, nil
	}
	u.header = response.Header
	return u, response
}

func (g *testGuest) upgrade(target string) *upgraded {
	g.t.Helper()
	u, response := g.request(target)
	if u == nil || response.StatusCode != 101 {
		g.t.Fatalf("%s: %+v", target, response)
	}
	g.t.Cleanup(func() { u.Close() })
	return u
}

// serveTCP accepts on a port of the loopback and gives each connection to serve.
func serveTCP(tb testing.TB, address string, serve func(*net.TCPConn)) (port int) {
	tb.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		tb.Skip(err)
	}
	tb.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func echo(conn *net.TCPConn) {
	defer conn.Close()
	_, _ = io.Copy(conn, conn)
}

func (g *testGuest) port(port int) *upgraded {
	g.t.Helper()
	return g.upgrade(fmt.Sprintf("/v1/ports/%d", port))
}

func TestPortIsOneConnectionWithHalfClose(t *testing.T) {
	g := startGuest(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		port := serveTCP(t, address, func(conn *net.TCPConn) {
			defer conn.Close()
			all, _ := io.ReadAll(conn) // answers only after the end of what it was sent
			fmt.Fprintf(conn, "%d bytes", len(all))
		})
		u := g.port(port)
		_, _ = u.Write([]byte("hello"))
		_ = u.CloseWrite()
		if got, err := io.ReadAll(u); string(got) != "5 bytes" || err != nil {
			t.Errorf("%s: %q %v", address, got, err)
		}
	}
}

func TestServerThatEndsItsSideStillReads(t *testing.T) {
	g := startGuest(t)
	got := make(chan string, 1)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		defer conn.Close()
		_, _ = conn.Write([]byte("banner"))
		_ = conn.CloseWrite()
		all, _ := io.ReadAll(conn)
		got <- string(all)
	})
	u := g.port(port)
	if banner, err := io.ReadAll(u); string(banner) != "banner" || err != nil {
		t.Fatalf("%q %v", banner, err)
	}
	_, _ = u.Write([]byte("late"))
	u.Close()
	if text := <-got; text != "late" {
		t.Errorf("%q", text)
	}
}

func TestPortRefusals(t *testing.T) {
	g := startGuest(t)
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	closed := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	for target, want := range map[string]string{
		fmt.Sprintf("/v1/ports/%d", closed): "409 conflict",
		"/v1/ports/0":                       "422 bad_request",
		"/v1/ports/65536":                   "422 bad_request",
		"/v1/ports/http":                    "422 bad_request",
	} {
		u, response := g.request(target)
		body, _ := io.ReadAll(response.Body)
		a := answer{response.StatusCode, response.Header, body}
		if got := a.code(t); got != want {
			t.Errorf("%s: %s", target, got)
		}
		if details, _ := a.json(t)["details"].(map[string]any); want == "409 conflict" && details["reason"] != "refused" {
			t.Errorf("%s", body)
		}
		u.Close()
	}
	if got := g.send("GET", "/v1/ports/80", nil).code(t); got != "422 bad_request" {
		t.Errorf("without Upgrade: %s", got)
	}
}

func TestPortPassesEveryByte(t *testing.T) {
	g := startGuest(t)
	u := g.port(serveTCP(t, "127.0.0.1:0", echo))
	const blocks = 200
	sent, received := sha256.New(), sha256.New()
	go func() {
		block := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		for i := range blocks {
			block[i] ^= 0xFF
			sent.Write(block)
			if _, err := u.Write(block); err != nil {
				t.Error(err)
				return
			}
		}
		_ = u.CloseWrite()
	}()
	n, err := io.Copy(received, u)
	if err != nil || n != blocks<<20 || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		t.Errorf("%d bytes back, %v", n, err)
	}
}

func TestManyPortConnectionsAtOnce(t *testing.T) {
	g := startGuest(t)
	port := serveTCP(t, "127.0.0.1:0", echo)
	var all sync.WaitGroup
	for i := range 200 {
		all.Add(1)
		go func() {
			defer all.Done()
			u, response := g.request(fmt.Sprintf("/v1/ports/%d", port))
			if u == nil || response.StatusCode != 101 {
				t.Errorf("%d: %+v", i, response)
				return
			}
			defer u.Close()
			text := strings.Repeat(fmt.Sprint(i), 10_000)
			go func() {
				_, _ = io.WriteString(u, text)
				_ = u.CloseWrite()
			}()
			if got, err := io.ReadAll(u); string(got) != text || err != nil {
				t.Errorf("%d: %d bytes, %v", i, len(got), err)
			}
		}()
	}
	all.Wait()
}

func TestHangUpOutsideClosesInsideAlsoWhenNothingMoves(t *testing.T) {
	g := startGuest(t)
	open := make(chan *net.TCPConn, 1)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) { open <- conn })
	u := g.port(port)
	_, _ = u.Write([]byte("x"))
	inside := <-open
	defer inside.Close()
	u.Close()
	_ = inside.SetDeadline(time.Now().Add(10 * time.Second))
	if all, err := io.ReadAll(inside); string(all) != "x" || err != nil {
		t.Fatalf("%q %v", all, err)
	}
	eventually(t, "writing is refused", func() bool {
		_, err := inside.Write([]byte("y"))
		return err != nil
	})
}

func TestServerThatGoesAwayEndsTheConnection(t *testing.T) {
	g := startGuest(t)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("bye"))
		_ = conn.SetLinger(0)
		time.AfterFunc(50*time.Millisecond, func() { conn.Close() }) // a reset, once what it said is under way
	})
	u := g.port(port)
	got, _ := io.ReadAll(u)
	if string(got) != "bye" {
		t.Errorf("%q", got)
	}
	eventually(t, "writing is refused", func() bool {
		_, err := u.Write([]byte("y"))
		return err != nil && !errors.Is(err, io.EOF)
	})
}

func TestSlowReaderHoldsTheServerBack(t *testing.T) {
	g := startGuest(t)
	sent := make(chan int, 1)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, _ := conn.Write(make([]byte, 64<<20))
		sent <- n
	})
	g.port(port)
	if n := <-sent; n > 32<<20 {
		t.Errorf("%d bytes taken though nobody reads", n)
	}
}

func BenchmarkPortOpen(b *testing.B) {
	g := startGuest(b)
	port := serveTCP(b, "127.0.0.1:0", echo)
	target := fmt.Sprintf("/v1/ports/%d", port)
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		u, _ := g.request(target)
		took = append(took, time.Since(began))
		u.Close()
	}
	report(b, took)
}

func BenchmarkPortDown(b *testing.B) {
	g := startGuest(b)
	port := serveTCP(b, "127.0.0.1:0", func(conn *net.TCPConn) {
		block := make([]byte, 256<<10)
		for {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	})
	u := g.port(port)
	block := make([]byte, 256<<10)
	b.SetBytes(int64(len(block)))
	b.ResetTimer()
	for range b.N {
		if _, err := io.ReadFull(u, block); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPortUp(b *testing.B) {
	g := startGuest(b)
	port := serveTCP(b, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
	})
	u := g.port(port)
	block := make([]byte, 256<<10)
	b.SetBytes(int64(len(block)))
	b.ResetTimer()
	for range b.N {
		if _, err := u.Write(block); err != nil {
			b.Fatal(err)
		}
	}
}
