package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Jupyter kernel is a command of ours whose sockets we hold on to: we keep what it says, by the
// message that it answers, so that a daemon that was started anew misses nothing. What messages mean
// is the daemon's business; we look at no more than the ids of a message and of its parent.

const (
	mostKernels     = 64
	mostDeadKernels = 16
	openPatience    = 120 * time.Second // for a kernel to open its sockets
	// For a kernel to take a message: less than the daemon waits for it, so that it is told whose doing it is.
	sendPatience   = 20 * time.Second
	connectionFile = "{connection_file}"
	kernelOutput   = 64 << 10 // of its own stdout and stderr, kept for people
	mostKernelNote = 64 << 10
)

// Channels, by their numbers in frames.
const (
	channelSent = iota // what the kernel was sent, on whatever channel
	channelShell
	channelIOPub
	channelStdin
	channelControl
	channelHeartbeat // which nobody listens to
)

// kernelRequest is the body of PUT /v1/kernels/{kid}. Like names a kernel whose own request this one
// adds to: one that is started anew needs no more. Expected stands in for the claim where there is none
// yet: a kernel may run before anybody leases the box.
type kernelRequest struct {
	Like     string            `json:"like"`
	Argv     []string          `json:"argv"`
	Env      map[string]string `json:"env"`
	Cwd      string            `json:"cwd"`
	User     string            `json:"user"`
	Note     json.RawMessage   `json:"note"`
	Expected *claimRequest     `json:"expected"`
}

// addTo completes a request by what an earlier one said.
func (r *kernelRequest) addTo(earlier *kernelRequest) {
	whole := *earlier
	whole.Env = maps.Clone(earlier.Env)
	for name, value := range r.Env {
		if whole.Env == nil {
			whole.Env = map[string]string{}
		}
		whole.Env[name] = value
	}
	if r.Cwd != "" {
		whole.Cwd = r.Cwd
	}
	if r.User != "" {
		whole.User = r.User
	}
	whole.Note = r.Note
	*r = whole
}

func (r *kernelRequest) check(id string) *problem {
	command := execRequest{ExecID: id, Argv: r.Argv, Env: r.Env, Cwd: r.Cwd, User: r.User}
	if len(r.Note) > mostKernelNote {
		return fail("too_large", "note is larger than %d bytes", mostKernelNote)
	}
	if r.Expected != nil {
		if p := r.Expected.checkTerms(); p != nil {
			return p
		}
	}
	return command.check()
}

// kernel is one kernel process and what it said.
type kernel struct {
	id     string
	key    string // with which its messages are signed
	prefix string // of the abstract names of its sockets
	file   string // its connection file
	began  *claim // that it was started with, or what stood in for it
	first  kernelRequest
	exec   *Exec
	log    *messageLog
	opened chan struct{} // closed once its sockets are, or it ended

	foreign atomic.Bool // somebody else listened in its place

	mu    sync.Mutex    // guards what follows
	asked kernelRequest // the first one, and what it was given since
	conns map[int]*zmtpConn
}

type kernelTable struct {
	guest *guest
	mu    sync.Mutex
	byID  map[string]*kernel
	order []*kernel
}

func newKernelTable(g *guest) *kernelTable {
	return &kernelTable{guest: g, byID: map[string]*kernel{}}
}

func (t *kernelTable) find(id string) (*kernel, *problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.byID[id]; k != nil {
		return k, nil
	}
	return nil, fail("not_found", "there is no kernel %q", id)
}

// forget removes a kernel that has ended; a living one is busy.
func (t *kernelTable) forget(id string) *problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.byID[id]
	switch {
	case k == nil:
		return fail("not_found", "there is no kernel %q", id)
	case !k.exec.isEnded():
		return fail("busy", "kernel %q runs", id)
	}
	delete(t.byID, id)
	t.order = slices.DeleteFunc(t.order, func(other *kernel) bool { return other == k })
	return nil
}

// idleSince is when any kernel was last busy.
func (t *kernelTable) idleSince() int64 {
	var since int64
	for _, k := range t.all() {
		since = max(since, k.log.idleSince())
	}
	return since
}

func (t *kernelTable) all() []*kernel {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// enter makes room for a kernel under its id; fresh is false where there is one already.
func (t *kernelTable) enter(id string, r *kernelRequest, began *claim) (k *kernel, fresh bool, p *problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k = t.byID[id]; k != nil {
		return k, false, nil
	}
	living := 0
	for _, other := range t.order {
		if !other.exec.isEnded() {
			living++
		}
	}
	if living >= mostKernels {
		return nil, false, fail("busy", "%d kernels run", living)
	}
	for len(t.order)-living >= mostDeadKernels {
		i := slices.IndexFunc(t.order, func(k *kernel) bool { return k.exec.isEnded() })
		delete(t.byID, t.order[i].id)
		t.order = slices.Delete(t.order, i, i+1)
	}
	k = &kernel{
		id: id, key: randomID(), prefix: "@kernel-" + randomID(), opened: make(chan struct{}),
		began: began, first: *r, asked: *r, exec: newApart(id), log: newMessageLog(), conns: map[int]*zmtpConn{},
	}
	t.byID[id] = k
	t.order = append(t.order, k)
	return k, true, nil
}

// startKernel starts a kernel, or finds the one that has the id already.
func (g *guest) startKernel(id string, r *kernelRequest) (*kernel, bool, error) {
	if r.Like != "" {
		earlier, p := g.kernels.find(r.Like)
		if p != nil {
			return nil, false, p
		}
		asked := earlier.request()
		r.addTo(&asked)
	}
	if p := r.check(id); p != nil {
		return nil, false, p
	}
	settings, err := g.settingsFor(r.Expected)
	if err != nil {
		return nil, false, err
	}
	who, p := settings.account(r.User)
	if p != nil {
		return nil, false, p
	}
	k, fresh, p := g.kernels.enter(id, r, settings)
	if p != nil || !fresh {
		if p != nil {
			return nil, false, p
		}
		return k, false, nil
	}
	limit := int64(kernelOutput)
	command := execRequest{ExecID: id, Env: r.Env, Cwd: r.Cwd, User: r.User, OutputLimit: &limit}
	file, err := k.writeConnectionFile(who)
	if err != nil {
		full := errors.Is(err, syscall.ENOSPC) && !inOwnMemory(err)
		g.finish(k.exec, result{outcome: outcomeStartFailed, reason: "no_room", detail: err.Error(), hostShort: full})
		close(k.opened)
		return k, true, nil
	}
	k.file = file
	for _, word := range r.Argv {
		command.Argv = append(command.Argv, strings.ReplaceAll(word, connectionFile, file))
	}
	k.exec.judge = func(res *result) { g.judge(k, res) }
	g.start(k.exec, &command, settings)
	go g.holdKernel(k)
	return k, true, nil
}

// writeConnectionFile tells the kernel where to listen: on abstract sockets, which need no directory
// that it could write to and that others could empty, and are of this sandbox's network alone.
func (k *kernel) writeConnectionFile(who account) (path string, err error) {
	facts, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": k.prefix, "key": k.key, "signature_scheme": "hmac-sha256",
		"shell_port": channelShell, "iopub_port": channelIOPub, "stdin_port": channelStdin,
		"control_port": channelControl, "hb_port": channelHeartbeat, "kernel_name": "",
	})
	if err != nil {
		return "", err
	}
	err = as(who, func() error {
		var file *os.File
		for _, directory := range []string{"/tmp", "/dev/shm", "/run", "/var/tmp"} {
			if file, err = os.CreateTemp(directory, "kernel-*.json"); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		defer file.Close()
		path = file.Name()
		_, err = file.Write(facts)
		return err
	})
	return path, err
}

// holdKernel connects to the kernel once it listens, reads what it says, and sees it to its end.
func (g *guest) holdKernel(k *kernel) {
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	go func() {
		<-k.exec.done
		cancel()
	}()
	if err := k.open(ctx, func(conn net.Conn) bool { return g.isOurs(k, conn) }); err != nil {
		k.foreign.Store(err == errForeign)
		k.exec.forceEnd(outcomeSignaled) // one that never listens is of no use
	}
	close(k.opened)
	<-k.exec.done
	cancel()
	_ = os.Remove(k.file)
	k.mu.Lock()
	for _, conn := range k.conns {
		_ = conn.conn.SetReadDeadline(time.Now().Add(lastWords))
	}
	open := len(k.conns)
	k.mu.Unlock()
	k.log.drained(open)
}

// lastWords is how long what a dead kernel had sent may take to be read.
const lastWords = time.Second

// open connects to each of its sockets. Whoever listens there is asked for by isOurs.
func (k *kernel) open(ctx context.Context, isOurs func(net.Conn) bool) error {
	pause := time.Millisecond
	for _, channel := range []int{channelIOPub, channelShell, channelControl, channelStdin} {
		kind := "DEALER"
		if channel == channelIOPub {
			kind = "SUB"
		}
		conn, err := dialZmtp(ctx, k.address(channel), kind, "sandbox-"+k.id, isOurs)
		for err != nil {
			if err == errForeign {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			pause = min(2*pause, 20*time.Millisecond)
			conn, err = dialZmtp(ctx, k.address(channel), kind, "sandbox-"+k.id, isOurs)
		}
		k.mu.Lock()
		k.conns[channel] = conn
		k.mu.Unlock()
		go k.listen(channel, conn)
	}
	return nil
}

func (k *kernel) address(channel int) string {
	return k.prefix + "-" + string(rune('0'+channel))
}

// listen keeps what comes on a channel until its connection ends.
func (k *kernel) listen(channel int, conn *zmtpConn) {
	defer k.log.closed()
	defer conn.close()
	for {
		parts, err := conn.receive(largestMessage)
		switch err {
		case nil:
			k.log.add(channel, parts)
		case errTooLarge:
			k.log.addLost(channel, parts)
		default:
			return
		}
	}
}

// send passes a message on, once for each id. It reports whether it was new.
func (k *kernel) send(channel int, id string, parts [][]byte) (fresh bool, err error) {
	k.mu.Lock()
	conn := k.conns[channel]
	k.mu.Unlock()
	if conn == nil || k.exec.isEnded() {
		return false, fail("gone", "the kernel is not there")
	}
	if !k.log.note(id, parts) {
		return false, nil
	}
	if err := conn.send(parts, sendPatience); err != nil {
		conn.close()
		k.exec.forceEnd(outcomeSignaled) // it takes nothing any more, and may have got half of it
		return true, fail("gone", "the kernel does not take messages: %v", err)
	}
	return true, nil
}
