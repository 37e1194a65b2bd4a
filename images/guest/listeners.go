package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	mostListeners = 64
	// mostQueued connections wait here for the daemon, those behind them in the kernel's backlogs.
	mostQueued    = 64
	queuePatience = 30 * time.Second
)

// listenerOrder is one listener on the wire; port 0 leaves the choice to the kernel.
type listenerOrder struct {
	Name  string `json:"name"`
	Port  int    `json:"port"`
	Error string `json:"error,omitempty"`
}

// listenerTable is where programs inside reach the daemon: ports of the sandbox's own loopback, and
// the connections to them that the daemon has not taken yet.
type listenerTable struct {
	setting sync.Mutex // held while the list changes
	byName  map[string]*insideListener
	slots   chan struct{} // one for each connection that is not handed over yet
	serial  atomic.Uint64

	mu     sync.Mutex // guards what follows
	queue  []*arrival
	takers []chan *arrival // each has room for one
}

type insideListener struct {
	name   string
	port   int
	inner  net.Listener
	closed chan struct{}
}

// arrival is a connection that somebody inside made to a listener.
type arrival struct {
	from    *insideListener
	conn    *net.TCPConn
	serial  uint64
	expires *time.Timer
}

func newListenerTable() *listenerTable {
	return &listenerTable{byName: map[string]*insideListener{}, slots: make(chan struct{}, mostQueued)}
}

func checkListeners(orders []listenerOrder) *problem {
	if len(orders) > mostListeners {
		return fail("bad_request", "listeners: more than %d", mostListeners)
	}
	names := map[string]bool{}
	for _, order := range orders {
		switch {
		case !validID(order.Name) || names[order.Name]:
			return fail("bad_request", "listeners: a name is not valid, or there twice")
		case order.Port < 0 || order.Port > 1<<16-1:
			return fail("bad_request", "listeners: a port is from 0 to 65535")
		case order.Error != "":
			return fail("bad_request", "listeners: error is ours to say")
		}
		names[order.Name] = true
	}
	return nil
}

// set makes the list the whole truth: what is no longer named closes, what is there already stays.
func (t *listenerTable) set(orders []listenerOrder) []listenerOrder {
	t.setting.Lock()
	defer t.setting.Unlock()
	wanted := map[string]int{}
	for _, order := range orders {
		wanted[order.Name] = order.Port
	}
	for name, l := range t.byName {
		if port, named := wanted[name]; !named || (port != 0 && port != l.port) {
			delete(t.byName, name)
			t.close(l)
		}
	}
	answer := make([]listenerOrder, 0, len(orders))
	for _, order := range orders {
		answer = append(answer, t.open(order))
	}
	return answer
}

// open listens, if it does not yet; the setting lock is held.
func (t *listenerTable) open(order listenerOrder) listenerOrder {
	if l := t.byName[order.Name]; l != nil {
		return listenerOrder{Name: l.name, Port: l.port}
	}
	inner, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(order.Port)))
	if err != nil {
		order.Error = listenFailure(err)
		return order
	}
	l := &insideListener{
		name: order.Name, port: inner.Addr().(*net.TCPAddr).Port,
		inner: patientListener{inner}, closed: make(chan struct{}),
	}
	t.byName[l.name] = l
	go t.serve(l)
	return listenerOrder{Name: l.name, Port: l.port}
}

func listenFailure(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "in_use"
	case errors.Is(err, syscall.EACCES):
		return "forbidden"
	}
	return "failed"
}

// close ends a listener and the connections to it that nobody took.
func (t *listenerTable) close(l *insideListener) {
	close(l.closed)
	l.inner.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.queue[:0]
	for _, a := range t.queue {
		if a.from == l {
			t.drop(a)
			continue
		}
		kept = append(kept, a)
	}
	clear(t.queue[len(kept):])
	t.queue = kept
}

// serve takes in the connections of one listener until it is closed.
func (t *listenerTable) serve(l *insideListener) {
	for {
		conn, err := l.inner.Accept()
		if err != nil {
			return
		}
		select {
		case t.slots <- struct{}{}:
		case <-l.closed:
			conn.Close()
			return
		}
		t.offer(&arrival{from: l, conn: conn.(*net.TCPConn), serial: t.serial.Add(1)})
	}
}

// offer hands a connection, which has a slot, to who has waited longest, or queues it.
func (t *listenerTable) offer(a *arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case isClosed(a.from.closed): // the list changed meanwhile
		t.drop(a)
	case len(t.takers) > 0:
		t.takers[0] <- a
		t.takers[0] = nil
		t.takers = t.takers[1:]
	default:
		a.expires = time.AfterFunc(queuePatience, func() { t.expire(a) })
		t.queue = slices.Insert(t.queue, t.placeOf(a), a)
	}
}

// placeOf keeps the queue in the order of arrival, also when a connection is given back.
func (t *listenerTable) placeOf(a *arrival) int {
	place := len(t.queue)
	for place > 0 && t.queue[place-1].serial > a.serial {
		place--
	}
	return place
}

// drop closes a connection that nobody took.
func (t *listenerTable) drop(a *arrival) {
	if a.expires != nil {
		a.expires.Stop()
	}
	a.conn.Close()
	<-t.slots
}

func (t *listenerTable) expire(a *arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, queued := range t.queue {
		if queued == a {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			t.drop(a)
			return
		}
	}
}

// take waits for a connection; nil once the context is done.
func (t *listenerTable) take(ctx context.Context) *arrival {
	t.mu.Lock()
	if len(t.queue) > 0 {
		a := t.queue[0]
		t.queue = t.queue[1:]
		a.expires.Stop()
		t.mu.Unlock()
		return a
	}
	mine := make(chan *arrival, 1)
	t.takers = append(t.takers, mine)
	t.mu.Unlock()
	select {
	case a := <-mine:
		return a
	case <-ctx.Done():
	}
	return t.withdraw(mine)
}

// withdraw takes a taker out of the list; what it was handed meanwhile goes back.
func (t *listenerTable) withdraw(mine chan *arrival) *arrival {
	t.mu.Lock()
	for i, taker := range t.takers {
		if taker == mine {
			t.takers = append(t.takers[:i], t.takers[i+1:]...)
			t.mu.Unlock()
			return nil
		}
	}
	t.mu.Unlock()
	t.offer(<-mine)
	return nil
}

func (g *guest) putListeners(w http.ResponseWriter, r *http.Request) error {
	var request struct {
		Listeners []listenerOrder `json:"listeners"`
	}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if p := checkListeners(request.Listeners); p != nil {
		return p
	}
	writeJSON(w, 200, map[string]any{"listeners": g.listeners.set(request.Listeners)})
	return nil
}

// accept turns the connection into the next one that somebody inside makes to a listener.
func (g *guest) accept(w http.ResponseWriter, r *http.Request) error {
	if p := wantsBytes(r); p != nil {
		return p
	}
	a := g.listeners.take(r.Context())
	if a == nil {
		return nil
	}
	outside, early, err := takeOver(w, r, "X-Listener: "+a.from.name+"\r\n")
	if err != nil {
		g.listeners.offer(a) // its taker is gone: the next one gets it
		return nil
	}
	<-g.listeners.slots
	joinStreams(outside, socketStream{a.conn}, early)
	return nil
}
