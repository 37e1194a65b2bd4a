package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"sync"
	"time"
)

const (
	proofMagic    = "sandbox1"
	nonceBytes    = 32
	proofBytes    = sha256.Size
	proofPatience = 10 * time.Second
)

// provenListener accepts TCP connections on which both sides must first prove that they know the token,
// which itself never travels. Peers from inside are closed without an answer: they could do no more than
// wait in the daemon's way.
type provenListener struct {
	net.Listener
	token      []byte
	allowLocal bool
}

func (l provenListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.allowLocal && isFromInside(conn) {
			conn.Close()
			continue
		}
		return &provenConn{TCPConn: conn.(*net.TCPConn), token: l.token}, nil
	}
}

// isFromInside: whoever talks to this host from itself has the address that it talks to, or loopback's.
func isFromInside(conn net.Conn) bool {
	peer, here := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
	return peer.IP.IsLoopback() || peer.IP.Equal(here.IP)
}

// provenConn proves itself at its first read, so that no peer holds up the others.
type provenConn struct {
	*net.TCPConn
	token  []byte
	proof  sync.Once
	failed bool
}

func (c *provenConn) Read(into []byte) (int, error) {
	c.proof.Do(func() {
		if c.failed = !c.prove(); c.failed {
			c.Close()
		}
	})
	if c.failed {
		return 0, io.EOF
	}
	return c.TCPConn.Read(into)
}

// SetReadDeadline passes on what ends a read at once. Who has proven to be the daemon may keep a line open
// and say nothing on it until it is needed; whether its machine is still there is found out by TCP.
func (c *provenConn) SetReadDeadline(at time.Time) error {
	if at.After(time.Now()) {
		at = time.Time{}
	}
	return c.TCPConn.SetReadDeadline(at)
}

// prove: the peer's magic and nonce come, our nonce and proof go, the peer's proof comes.
func (c *provenConn) prove() bool {
	hurry := time.AfterFunc(proofPatience, func() { c.Close() }) // a read deadline is the server's own
	defer hurry.Stop()
	var hello [len(proofMagic) + nonceBytes]byte
	if _, err := io.ReadFull(c.TCPConn, hello[:]); err != nil || string(hello[:len(proofMagic)]) != proofMagic {
		return false
	}
	var ours [nonceBytes]byte
	if _, err := rand.Read(ours[:]); err != nil {
		return false
	}
	nonces := append(hello[len(proofMagic):], ours[:]...)
	if _, err := c.TCPConn.Write(append(ours[:], proofOf(c.token, "guest", nonces)...)); err != nil {
		return false
	}
	var theirs [proofBytes]byte
	if _, err := io.ReadFull(c.TCPConn, theirs[:]); err != nil {
		return false
	}
	return hmac.Equal(theirs[:], proofOf(c.token, "daemon", nonces))
}

// proofOf is what only who knows the token can say of both nonces; side keeps one from being sent back.
func proofOf(token []byte, side string, nonces []byte) []byte {
	mac := hmac.New(sha256.New, token)
	mac.Write([]byte(side))
	mac.Write(nonces)
	return mac.Sum(nil)
}
