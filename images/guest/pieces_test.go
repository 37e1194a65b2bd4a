package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// inPieces opens a port as a caller does whose connection only ends as a whole.
func (g *testGuest) inPieces(port int) (net.Conn, *bufio.Reader) {
	g.t.Helper()
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "GET /v1/ports/%d HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: sandbox-bytes\r\nX-Pieces: 1\r\n\r\n", port)
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, nil)
	if err != nil || response.StatusCode != 101 || response.Header.Get("Upgrade") != upgradePieces {
		g.t.Fatal(response, err)
	}
	_, _ = conn.Write([]byte{1})
	return conn, from
}

func asPiece(text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func TestInPiecesEachDirectionEndsByItself(t *testing.T) {
	g := startGuest(t)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		defer conn.Close()
		all, _ := io.ReadAll(conn) // answers only after the end of what it was sent
		fmt.Fprintf(conn, "%d bytes", len(all))
	})
	conn, from := g.inPieces(port)
	for _, text := range []string{"hello", " ", "there", ""} {
		_, _ = conn.Write(asPiece(text))
	}
	got := make([]byte, len(asPiece("11 bytes"))+pieceLength)
	if _, err := io.ReadFull(from, got); err != nil || string(got) != string(asPiece("11 bytes"))+string(asPiece("")) {
		t.Errorf("%q %v", got, err)
	}
}

func TestWhatEndsWithoutALastPieceIsAHangUp(t *testing.T) {
	g := startGuest(t)
	cut := make(chan error, 1)
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		defer conn.Close()
		for {
			if _, err := conn.Write([]byte("y")); err != nil {
				cut <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	conn, _ := g.inPieces(port)
	_, _ = conn.Write(asPiece("x")[:3])
	conn.Close()
	select {
	case <-cut:
	case <-time.After(10 * time.Second):
		t.Error("the server was never told")
	}
}
