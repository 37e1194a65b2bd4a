package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"net/http"
)

// kernelView is a kernel on the wire.
type kernelView struct {
	KernelID string          `json:"kernel_id"`
	State    string          `json:"state"` // starting, running, dead
	Key      string          `json:"key"`
	Note     json.RawMessage `json:"note"`
	Seq      uint64          `json:"seq"` // of the newest message
	Exec     *execView       `json:"exec"`
}

func (k *kernel) view(withOutput bool) kernelView {
	state := "starting"
	select {
	case <-k.opened:
		state = "running"
	default:
	}
	if k.exec.isEnded() {
		state = "dead"
	}
	return kernelView{k.id, state, k.key, k.request().Note, k.log.newest(), k.exec.view(withOutput)}
}

func (g *guest) putKernel(w http.ResponseWriter, r *http.Request) error {
	var request kernelRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	k, fresh, err := g.startKernel(r.PathValue("kid"), &request)
	if err != nil {
		return err
	}
	<-k.exec.launched
	status := 200
	if fresh {
		status = 201
	}
	writeJSON(w, status, k.view(false))
	return nil
}

func (g *guest) listKernels(w http.ResponseWriter, _ *http.Request) error {
	views := []kernelView{}
	for _, k := range g.kernels.all() {
		views = append(views, k.view(false))
	}
	writeJSON(w, 200, map[string]any{"kernels": views})
	return nil
}

// getKernel shows a kernel with the end of what it wrote to its own output, for people.
func (g *guest) getKernel(w http.ResponseWriter, r *http.Request) error {
	k, p := g.kernels.find(r.PathValue("kid"))
	if p != nil {
		return p
	}
	writeJSON(w, 200, k.view(true))
	return nil
}

// deleteKernel forgets a kernel that has ended, and all that it said.
func (g *guest) deleteKernel(w http.ResponseWriter, r *http.Request) error {
	if p := g.kernels.forget(r.PathValue("kid")); p != nil {
		return p
	}
	writeJSON(w, 200, map[string]any{})
	return nil
}

func (g *guest) signalKernel(w http.ResponseWriter, r *http.Request) error {
	var request struct {
		Signal string `json:"signal"`
	}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	k, p := g.kernels.find(r.PathValue("kid"))
	if p != nil {
		return p
	}
	delivered, p := g.signal(k.exec, request.Signal)
	if p != nil {
		return p
	}
	if request.Signal == "KILL" {
		<-k.exec.done
	}
	writeJSON(w, 200, map[string]any{"delivered": delivered, "state": k.view(false).State})
	return nil
}

// attachKernel turns the connection into frames both ways: what the kernel said from a seq on, then
// live, and messages for it.
func (g *guest) attachKernel(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	after := uint64(q.number("after", 0))
	if q.failed != nil {
		return q.failed
	}
	if p := wantsFrames(r); p != nil {
		return p
	}
	k, p := g.kernels.find(r.PathValue("kid"))
	if p != nil {
		return p
	}
	<-k.opened
	conn, from, p := takeOverForFrames(w)
	if p != nil {
		return p
	}
	defer conn.Close()
	out := &sharedWriter{to: frameWriter{conn, readerPatience}}
	if out.write([]byte(framesFollow)) != nil {
		return nil
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		k.takeMessages(from, out)
	}()
	k.sendMessages(out, after, gone)
	return nil
}

// sendMessages sends what comes, and at last how the kernel ended.
func (k *kernel) sendMessages(out *sharedWriter, after uint64, gone <-chan struct{}) {
	var frames []byte
	known := k.log.newest()
	var changed chan struct{}
	for {
		frames, after, changed = k.log.take(after, known, frames[:0])
		switch {
		case len(frames) > 0:
			if out.write(frames) != nil {
				return
			}
			if cap(frames) > 4*largestFrame {
				frames = nil
			}
		case changed != nil:
			select {
			case <-changed:
			case <-gone:
				return
			}
		default:
			_ = out.write(appendJSON(nil, map[string]any{"ended": k.exec.view(true)}))
			return
		}
	}
}

// takeMessages passes on what the daemon sends, and answers each with whether it was new.
func (k *kernel) takeMessages(from *bufio.Reader, out *sharedWriter) {
	buffer := make([]byte, 0, 4096)
	for {
		kind, payload, err := readFrameOf(from, buffer, largestMessage)
		if err != nil {
			return
		}
		if buffer = payload[:0]; cap(buffer) > largestFrame {
			buffer = nil
		}
		if kind != frameSend {
			continue
		}
		channel, id, parts, ok := readSend(payload)
		sent := map[string]any{"msg_id": id, "fresh": false}
		if !ok {
			sent["error"] = "the frame is not a message"
		} else if fresh, err := k.send(channel, id, parts); err != nil {
			sent["error"] = err.Error()
		} else {
			sent["fresh"] = fresh
		}
		if out.write(appendJSON(nil, map[string]any{"sent": sent})) != nil {
			return
		}
	}
}

// readSend reads channel (1 byte), the length of the id (1 byte), the id, and the parts, each behind
// its length (4 bytes).
func readSend(payload []byte) (channel int, id string, parts [][]byte, ok bool) {
	if len(payload) < 2 || len(payload) < 2+int(payload[1]) {
		return 0, "", nil, false
	}
	channel, id = int(payload[0]), string(payload[2:2+int(payload[1])])
	rest := payload[2+int(payload[1]):]
	for len(rest) >= 4 {
		size := uint64(binary.BigEndian.Uint32(rest))
		if rest = rest[4:]; uint64(len(rest)) < size || len(parts) >= mostZmtpParts {
			return 0, id, nil, false
		}
		parts = append(parts, rest[:size])
		rest = rest[size:]
	}
	valid := channel >= channelShell && channel <= channelControl && channel != channelIOPub
	return channel, id, parts, valid && len(rest) == 0 && len(parts) > 0 && validID(id)
}
