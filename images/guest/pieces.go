package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"time"
)

// pieces gives each direction an end of its own on a connection that only ends as a whole, as one that
// a cluster's API server forwards: what is sent goes in pieces with their length before them, and one of
// length 0 is the end. What ends without one was cut off.
type pieces struct {
	net.Conn
	from  *bufio.Reader
	left  uint32 // of the piece that is being read
	ended bool
}

const (
	piecesHeader  = "X-Pieces" // of a caller that wants them; older guests do not know it
	upgradePieces = "sandbox-pieces"
	pieceLength   = 4 // bytes

	callerPatience = 10 * time.Second
)

func wantsPieces(r *http.Request) bool { return r.Header.Get(piecesHeader) != "" }

// newPieces waits for the byte by which the caller says that it is still there: where somebody forwards,
// an answer can be sent for a while to one who is not.
func newPieces(conn net.Conn, early []byte) (halfStream, error) {
	p := &pieces{Conn: conn, from: bufio.NewReader(io.MultiReader(bytes.NewReader(early), conn))}
	_ = conn.SetReadDeadline(time.Now().Add(callerPatience))
	if _, err := p.from.ReadByte(); err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return p, nil
}

func (p *pieces) Read(into []byte) (int, error) {
	for p.left == 0 {
		if p.ended {
			return 0, io.EOF
		}
		var head [pieceLength]byte
		if _, err := io.ReadFull(p.from, head[:]); err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		p.left = binary.BigEndian.Uint32(head[:])
		p.ended = p.left == 0
	}
	n, err := p.from.Read(into[:min(len(into), int(p.left))])
	p.left -= uint32(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (p *pieces) Write(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	piece := append(binary.BigEndian.AppendUint32(make([]byte, 0, pieceLength+len(data)), uint32(len(data))), data...)
	n, err := p.Conn.Write(piece)
	return max(0, n-pieceLength), err
}

func (p *pieces) CloseWrite() error {
	_, err := p.Conn.Write(make([]byte, pieceLength))
	return err
}

// CloseRead does nothing: what still comes is read and dropped until the peer hangs up.
func (p *pieces) CloseRead() error { return nil }

func (p *pieces) relayTo(to io.Writer) error {
	_, err := io.Copy(to, p)
	return err
}

func (p *pieces) awaitHangup() {
	_, _ = io.Copy(io.Discard, p.from)
}
