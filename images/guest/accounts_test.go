package main

import (
	"syscall"
	"testing"
	"time"
)

func TestNothingIsWaitedForInPlaceOfAFile(t *testing.T) {
	fifo := t.TempDir() + "/passwd"
	must(t, syscall.Mkfifo(fifo, 0o600))
	read := make(chan []byte, 1)
	go func() { read <- readBounded(fifo, 100) }()
	select {
	case data := <-read:
		if data != nil {
			t.Fatalf("%q", data)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a FIFO is waited for")
	}
	if readBounded("/dev/zero", 100) != nil {
		t.Fatal("a device is read")
	}
	if len(readBounded("/proc/self/status", 100)) == 0 {
		t.Fatal("a file without a size is not read")
	}
}
