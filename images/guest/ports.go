package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// dialPatience is how long a connection to a port inside may take: only a full backlog makes it wait.
const dialPatience = 5 * time.Second

const upgradeBytes = "sandbox-bytes"

// openPort turns the connection into one to a port of the sandbox's own loopback.
func (g *guest) openPort(w http.ResponseWriter, r *http.Request) error {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return fail("bad_request", "a port is a number from 1 to 65535")
	}
	if p := wantsBytes(r); p != nil {
		return p
	}
	inside, p := dialInside(r.Context(), strconv.FormatUint(port, 10))
	if p != nil {
		return p
	}
	outside, early, err := takeOver(w, r, "")
	if err != nil {
		inside.Close()
		return nil // its caller is gone
	}
	joinStreams(outside, inside, early)
	return nil
}

func wantsBytes(r *http.Request) *problem {
	if !strings.EqualFold(r.Header.Get("Upgrade"), upgradeBytes) {
		return fail("bad_request", "this needs Upgrade: %s", upgradeBytes)
	}
	return nil
}

// dialInside connects to who listens on the port, IPv4 first.
func dialInside(ctx context.Context, port string) (halfStream, *problem) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	var dialer net.Dialer
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err == nil {
			return socketStream{conn.(*net.TCPConn)}, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(first, syscall.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(first, syscall.ECONNREFUSED) {
		return nil, fail("conflict", "nobody listens on port %s", port).with("reason", "refused")
	}
	if ctx.Err() != nil {
		return nil, fail("conflict", "who listens on port %s does not answer", port).with("reason", "timeout")
	}
	return nil, asProblem(first)
}

// halfStream is a connection whose directions end one by one.
type halfStream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	relayTo(to io.Writer) error // all that it says, until it ends
	awaitHangup()               // until the peer has closed the whole connection, or we have
}

// socketStream is a socket as it is: of TCP, or Unix.
type socketStream struct{ socket }

type socket interface {
	net.Conn
	syscall.Conn
	CloseRead() error
	CloseWrite() error
}

// takeOver answers 101 and hands over the connection, with what its peer has sent of it already.
func takeOver(w http.ResponseWriter, r *http.Request, headers string) (conn halfStream, early []byte, err error) {
	taken, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	raw, ok := taken.(socket)
	if !ok {
		taken.Close()
		return nil, nil, fail("internal", "a connection without half-close")
	}
	conn = socketStream{raw}
	_ = conn.SetDeadline(time.Time{})
	early = make([]byte, buffered.Reader.Buffered())
	_, _ = io.ReadFull(buffered.Reader, early)
	upgrade := upgradeBytes
	if wantsPieces(r) {
		upgrade = upgradePieces
	}
	hello := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + "\r\n" + headers + "\r\n"
	if _, err = io.WriteString(conn, hello); err != nil {
		conn.Close()
		return nil, nil, err
	}
	if wantsPieces(r) {
		pieces, err := newPieces(conn, early)
		return pieces, nil, err
	}
	return conn, early, nil
}

// joinStreams passes bytes both ways until both directions have ended or the outside hung up. It
// closes both connections.
func joinStreams(outside, inside halfStream, early []byte) {
	defer outside.Close()
	defer inside.Close()
	inEnded := make(chan struct{})
	go func() {
		_, err := inside.Write(early)
		if err == nil {
			passBytes(inside, outside)
		}
		close(inEnded)
		outside.awaitHangup()
		inside.Close() // else a program that neither reads nor writes keeps both for ever
	}()
	passBytes(outside, inside)
	<-inEnded
}

// passBytes copies until the end of from, and passes that on. A side that takes no more is told to
// the other by no longer reading from it: what comes the other way may still be wanted.
func passBytes(to, from halfStream) {
	err := from.relayTo(to)
	_ = to.CloseWrite()
	if err != nil {
		_ = from.CloseRead()
	}
}

// relayTo holds a buffer only while there is something in it. io.Copy would splice, which is no
// faster here and keeps a pipe of a megabyte for every direction of every idle connection: all
// sandboxes of a user that is not root together may have 64 of those.
func (s socketStream) relayTo(to io.Writer) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	for {
		buffer, n, err := readSome(raw)
		if err != nil || n == 0 {
			return err
		}
		_, err = to.Write(buffer[:n])
		pumpBuffers.Put(buffer)
		if err != nil {
			return err
		}
	}
}

// readSome waits until there is something, and reads it; n is 0 at the end. Without an error and with
// n > 0 the buffer is the caller's to give back.
func readSome(raw syscall.RawConn) (buffer *[pumpBytes]byte, n int, err error) {
	waited := raw.Read(func(fd uintptr) bool {
		buffer = pumpBuffers.Get().(*[pumpBytes]byte)
		for {
			if n, err = syscall.Read(int(fd), buffer[:]); err != syscall.EINTR {
				break
			}
		}
		if err != nil || n <= 0 {
			pumpBuffers.Put(buffer)
		}
		return err != syscall.EAGAIN
	})
	if waited != nil {
		return nil, 0, waited
	}
	return buffer, n, err
}

const (
	pollHangup = 0x10 // POLLHUP: both directions are over
	pollError  = 0x08
)

type pollEntry struct {
	fd      int32
	events  int16
	returns int16
}

func (s socketStream) awaitHangup() {
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		entry := pollEntry{fd: int32(fd)}
		var now syscall.Timespec
		_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&entry)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		return errno != 0 && errno != syscall.EINTR || entry.returns&(pollHangup|pollError) != 0
	})
}
