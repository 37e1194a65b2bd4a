package main

import (
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// provenPair is a line on which both sides have proven themselves: the guest's end, and the daemon's.
func provenPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	token := []byte("0123456789abcdef")
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	daemon, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Close() })
	guest, err := provenListener{Listener: inner, token: token, allowLocal: true}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close() })
	go func() {
		ours := make([]byte, nonceBytes)
		_, _ = daemon.Write(append([]byte(proofMagic), ours...))
		answer := make([]byte, nonceBytes+proofBytes)
		_, _ = io.ReadFull(daemon, answer)
		nonces := append(ours, answer[:nonceBytes]...)
		_, _ = daemon.Write(append(proofOf(token, "daemon", nonces), '1'))
	}()
	var first [1]byte
	if _, err := io.ReadFull(guest, first[:]); err != nil || first[0] != '1' {
		t.Fatalf("%q, %v", first, err)
	}
	return guest, daemon
}

func TestALineThatHasProvenItselfMayWaitForItsFirstRequest(t *testing.T) {
	guest, daemon := provenPair(t)
	if err := guest.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _, _ = daemon.Write([]byte("2")) })
	var next [1]byte
	if _, err := io.ReadFull(guest, next[:]); err != nil || next[0] != '2' {
		t.Fatalf("%q, %v", next, err)
	}
}

func TestAReadOfAProvenLineIsStillEndedAtOnce(t *testing.T) {
	guest, _ := provenPair(t)
	time.AfterFunc(20*time.Millisecond, func() { _ = guest.SetReadDeadline(time.Unix(1, 0)) })
	if _, err := guest.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Fatal(err)
	}
}
