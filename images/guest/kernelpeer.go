package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// Who runs beside a kernel as the same user can read its connection file, and be quicker to listen where
// it tells the kernel to. So the operating system is asked who listens, before a byte is sent: it must be
// the kernel, or what it started.

const (
	mostSocketTable = 16 << 20 // of /proc/net/unix
	mostAncestors   = 1 << 10
)

var errForeign = errors.New("another process took the place of the kernel's sockets")

// peerOf is the process that listens at the other end of a Unix socket; 0 if that cannot be told.
func peerOf(conn net.Conn) (pid int) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// isBelow reports whether a process is p's main process or was started below it.
func (t *processTable) isBelow(p *process, pid int) bool {
	<-p.started
	for steps := 0; pid > 1 && steps < mostAncestors; steps++ {
		if pid == p.pid || pid == p.shimPID {
			return true
		}
		pid = parentOf(pid)
	}
	return false
}

// isOurs reports whether it is the kernel that listens at the other end.
func (g *guest) isOurs(k *kernel, conn net.Conn) bool {
	return k.exec.process != nil && g.processes.isBelow(k.exec.process, peerOf(conn))
}

// judge adds to how a kernel ended what only its sockets tell: one that cannot listen because somebody
// else has its names ends by itself.
func (g *guest) judge(k *kernel, res *result) {
	if k.foreign.Load() || !isClosed(k.opened) && g.isDisplaced(k) {
		res.fromInside, res.detail = true, errForeign.Error()
	}
}

// isDisplaced reports whether somebody else has a name that was the kernel's own.
func (g *guest) isDisplaced(k *kernel) bool {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return false
	}
	defer file.Close()
	table, _ := io.ReadAll(io.LimitReader(file, mostSocketTable))
	for channel := channelShell; channel <= channelHeartbeat; channel++ {
		if name := k.address(channel); bytes.Contains(table, []byte(strings.TrimPrefix(name, "@"))) && !g.answersFor(k, name) {
			return true
		}
	}
	return false
}

// answersFor reports whether it is what the kernel left behind that listens there.
func (g *guest) answersFor(k *kernel, name string) bool {
	var dialer net.Dialer
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "unix", name)
	if err != nil {
		return false
	}
	defer conn.Close()
	return g.isOurs(k, conn)
}
