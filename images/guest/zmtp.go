package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The part of ZMTP 3.0 that a client of a Jupyter kernel needs: one connection of a DEALER or SUB
// socket, without security (the messages themselves are signed). Who is at the other end is hostile:
// every size is checked before it is believed.

const (
	zmtpMore    = 1 << 0
	zmtpLong    = 1 << 1
	zmtpCommand = 1 << 2

	zmtpGreeting = 64
	zmtpPatience = 10 * time.Second // for the greeting
	zmtpReady    = "\x05READY"

	mostZmtpParts = 256
	mostCommand   = 64 << 10
)

var errTooLarge = errors.New("a message is too large")

// zmtpConn is one connection. Its peer closes it when it dies.
type zmtpConn struct {
	conn net.Conn
	from *bufio.Reader

	writing sync.Mutex
	to      *bufio.Writer
}

// dialZmtp connects, and for SUB subscribes to everything. Nothing is said to whom isOurs does not know.
func dialZmtp(ctx context.Context, address, kind, identity string, isOurs func(net.Conn) bool) (*zmtpConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	if !isOurs(conn) {
		conn.Close()
		return nil, errForeign
	}
	z := &zmtpConn{conn: conn, from: bufio.NewReaderSize(conn, 64<<10), to: bufio.NewWriterSize(conn, 16<<10)}
	_ = conn.SetDeadline(time.Now().Add(zmtpPatience))
	if err = z.greet(kind, identity); err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return z, nil
}

func (z *zmtpConn) greet(kind, identity string) error {
	ours := make([]byte, zmtpGreeting)
	ours[0], ours[9], ours[10] = 0xFF, 0x7F, 3
	copy(ours[12:], "NULL")
	if _, err := z.conn.Write(ours); err != nil {
		return err
	}
	theirs := make([]byte, zmtpGreeting)
	if _, err := io.ReadFull(z.from, theirs); err != nil {
		return err
	}
	if theirs[0] != 0xFF || theirs[9]&1 == 0 || theirs[10] < 3 || string(theirs[12:17]) != "NULL\x00" {
		return errors.New("no ZMTP 3 without security is spoken there")
	}
	ready := appendProperty([]byte(zmtpReady), "Socket-Type", kind)
	ready = appendProperty(ready, "Identity", identity)
	if err := z.writeFrame(zmtpCommand, ready); err != nil {
		return err
	}
	if kind == "SUB" {
		if err := z.writeFrame(0, []byte{1}); err != nil { // subscribe to every topic
			return err
		}
	}
	if err := z.to.Flush(); err != nil {
		return err
	}
	flags, size, err := z.readHead()
	if err != nil {
		return err
	}
	if flags&zmtpCommand == 0 || size > mostCommand {
		return errors.New("no READY came")
	}
	answer := make([]byte, size)
	if _, err = io.ReadFull(z.from, answer); err != nil {
		return err
	}
	if len(answer) < len(zmtpReady) || string(answer[:len(zmtpReady)]) != zmtpReady {
		return fmt.Errorf("%.100q came for READY", answer)
	}
	return nil
}

func appendProperty(to []byte, name, value string) []byte {
	to = append(to, byte(len(name)))
	to = append(to, name...)
	to = binary.BigEndian.AppendUint32(to, uint32(len(value)))
	return append(to, value...)
}

// writeFrame leaves the flush to its caller.
func (z *zmtpConn) writeFrame(flags byte, body []byte) error {
	var head [9]byte
	size := 2
	head[1] = byte(len(body))
	if len(body) > 255 {
		flags |= zmtpLong
		size = 9
		binary.BigEndian.PutUint64(head[1:], uint64(len(body)))
	}
	head[0] = flags
	if _, err := z.to.Write(head[:size]); err != nil {
		return err
	}
	_, err := z.to.Write(body)
	return err
}

// send writes one message. A peer that takes nothing for patience breaks the connection.
func (z *zmtpConn) send(parts [][]byte, patience time.Duration) error {
	z.writing.Lock()
	defer z.writing.Unlock()
	_ = z.conn.SetWriteDeadline(time.Now().Add(patience))
	for i, part := range parts {
		var flags byte
		if i < len(parts)-1 {
			flags = zmtpMore
		}
		if err := z.writeFrame(flags, part); err != nil {
			return err
		}
	}
	return z.to.Flush()
}

func (z *zmtpConn) readHead() (flags byte, size uint64, err error) {
	var head [8]byte
	if _, err = io.ReadFull(z.from, head[:1]); err != nil {
		return 0, 0, err
	}
	flags = head[0]
	if flags&zmtpLong == 0 {
		_, err = io.ReadFull(z.from, head[7:])
	} else {
		_, err = io.ReadFull(z.from, head[:])
	}
	if flags&zmtpLong == 0 {
		return flags, uint64(head[7]), err
	}
	return flags, binary.BigEndian.Uint64(head[:]), err
}

// receive reads one message. Of one larger than most only the parts that still fit are read into
// memory; the rest is skipped, and errTooLarge told with them.
func (z *zmtpConn) receive(most int) (parts [][]byte, err error) {
	room := uint64(most)
	tooLarge := false
	for count := 0; ; count++ {
		flags, size, err := z.readHead()
		if err != nil {
			return nil, err
		}
		if flags&zmtpCommand != 0 {
			if size > mostCommand {
				return nil, errors.New("a command is too large")
			}
			if _, err = z.from.Discard(int(size)); err != nil {
				return nil, err
			}
			continue
		}
		if tooLarge = tooLarge || size > room || count >= mostZmtpParts; tooLarge {
			if size > 1<<40 {
				return nil, errors.New("a part has no end")
			}
			if _, err = io.CopyN(io.Discard, z.from, int64(size)); err != nil {
				return nil, err
			}
		} else {
			part := make([]byte, size)
			if _, err = io.ReadFull(z.from, part); err != nil {
				return nil, err
			}
			room -= size
			parts = append(parts, part)
		}
		if flags&zmtpMore == 0 {
			if tooLarge {
				return parts, errTooLarge
			}
			return parts, nil
		}
	}
}

func (z *zmtpConn) close() { z.conn.Close() }
