package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

const (
	// idleConnection is longer than any client of ours keeps a connection that it does not use.
	idleConnection = 330 * time.Second
	headerPatience = 30 * time.Second
	processors     = 2
)

// serve runs the guest until it ends itself.
func serve(o options) error {
	runtime.GOMAXPROCS(processors)
	debug.SetGCPercent(50)
	if err := reserveDescriptors(); err != nil { // before harden: it hides /proc/self from who is not root
		return err
	}
	findProgramPages()
	harden()
	var token []byte
	if o.tokenFile != "" {
		var err error
		if token, err = takeToken(o.tokenFile); err != nil {
			return err
		}
	}
	prewarm()
	g, err := newGuest(o)
	if err != nil {
		return err
	}
	listener, err := listen(o, token)
	if err != nil {
		return err
	}
	_ = os.Chdir("/") // from here on no path is relative to where it was started
	return newServer(g).Serve(listener)
}

func newServer(g *guest) *http.Server {
	return &http.Server{
		Handler:           g.routes(),
		ReadHeaderTimeout: headerPatience,
		IdleTimeout:       idleConnection,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // what a peer does wrong is its own affair
	}
}

func listen(o options, token []byte) (net.Listener, error) {
	if o.listen != "" {
		inner, err := net.Listen("tcp", o.listen)
		return provenListener{patientListener{inner}, token, o.allowLocalPeers}, err
	}
	if err := os.Remove(o.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("an old socket is in the way: %w", err)
	}
	inner, err := net.Listen("unix", o.socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(o.socket, 0o600); err != nil {
		return nil, err
	}
	if o.allowLocalPeers {
		return patientListener{inner}, nil
	}
	return &outsideListener{patientListener{inner}}, nil
}

// outsideListener accepts peers from outside the guest's pid namespace alone; others are closed
// without an answer.
type outsideListener struct{ net.Listener }

// patientListener accepts until it can. No failure but being closed may end the guest: what the kernel
// runs short of (descriptors, memory, watches of its polling) belongs to all of the user's sandboxes, and
// one of them could use it up for all.
type patientListener struct{ net.Listener }

func (l patientListener) Accept() (net.Conn, error) {
	const longest = time.Second
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longest) {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		time.Sleep(pause)
	}
}

func (l *outsideListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peerPID(conn) == 0 {
			return conn, nil
		}
		conn.Close()
	}
}

// peerPID is the peer's pid as this namespace sees it: 0 when it is outside; -1 when it cannot be known.
func peerPID(conn net.Conn) int {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return -1
	}
	pid := -1
	_ = raw.Control(func(fd uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}
