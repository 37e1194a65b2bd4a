package main

import (
	"encoding/binary"
	"io"
)

func appendFrame(frames []byte, kind byte, payload []byte) []byte {
	frames = append(frames, kind)
	frames = binary.BigEndian.AppendUint32(frames, uint32(len(payload)))
	return append(frames, payload...)
}

// readFrame reads one frame into buffer, which it may replace by a larger one.
func readFrame(from io.Reader, buffer []byte) (kind byte, payload []byte, err error) {
	return readFrameOf(from, buffer, largestFrame)
}

// readFrameOf reads a frame of at most so many bytes.
func readFrameOf(from io.Reader, buffer []byte, most uint32) (kind byte, payload []byte, err error) {
	var head [frameHead]byte
	if _, err = io.ReadFull(from, head[:]); err != nil {
		return 0, buffer, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > most {
		return 0, buffer, fail("too_large", "a frame of %d bytes", size)
	}
	if uint32(cap(buffer)) < size {
		buffer = make([]byte, size)
	}
	payload = buffer[:size]
	_, err = io.ReadFull(from, payload)
	return head[0], payload, err
}
