package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"sync"
)

const (
	// largestMessage is what one message of a kernel may take; of a larger one only that it was is kept.
	largestMessage = 16 << 20
	// mostLogBytes are kept of a kernel's messages; of older ones that only show something, only how many
	// there were.
	mostLogBytes  = 32 << 20
	mostRecords   = 100_000
	mostSentIDs   = 100_000
	mostMessageID = 255 // as long as one can be that is sent
	recordCost    = 200 // of bookkeeping, in bytes
	evictedAtOnce = mostLogBytes / 8
)

var delimiter = []byte("<IDS|MSG>")

// kernelMessage is a message of a kernel, or (without parts) how many are no longer kept.
type kernelMessage struct {
	seq       uint64
	channel   int
	parent    string // the id of the message that it answers
	parts     [][]byte
	size      int
	essential bool
	lost      int
	lostBytes int
}

func lostMessage(channel int, parent string) kernelMessage {
	return kernelMessage{channel: channel, parent: parent, size: recordCost, lost: 1, lostBytes: largestMessage}
}

// isAbout reports whether two messages answer the same one on the same channel.
func (r *kernelMessage) isAbout(other *kernelMessage) bool {
	return r.parent == other.parent && r.channel == other.channel
}

// messageLog keeps what a kernel said, in the order in which it came, and which messages it was sent.
type messageLog struct {
	mu       sync.Mutex
	records  []kernelMessage
	last     uint64 // seq of the newest
	bytes    int
	sent     map[string]bool
	sentIDs  []string
	busy     bool
	quietAt  int64 // boot time since which it is not busy
	ended    bool
	changed  chan struct{}
	quietted chan struct{}
}

func newMessageLog() *messageLog {
	return &messageLog{sent: map[string]bool{}, changed: make(chan struct{}), quietted: make(chan struct{}, 8)}
}

// note enters a message that is about to be sent, so that a later daemon knows what it answers to.
// False: it was sent before.
func (l *messageLog) note(id string, parts [][]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[id] {
		return false
	}
	l.sent[id] = true
	r := kernelMessage{channel: channelSent, parent: id, size: recordCost, essential: true}
	for _, part := range parts {
		r.parts = append(r.parts, bytes.Clone(part))
		r.size += len(part)
	}
	l.enter(r)
	l.sentIDs = append(l.sentIDs, id)
	if len(l.sentIDs) > mostSentIDs {
		delete(l.sent, l.sentIDs[0])
		l.sentIDs = l.sentIDs[1:]
	}
	return true
}

// add keeps a message.
func (l *messageLog) add(channel int, parts [][]byte) {
	kind, parent := readIDs(parts)
	if isIntricate(parts) {
		l.append(lostMessage(channel, parent))
		return
	}
	r := kernelMessage{channel: channel, parent: parent, parts: parts, size: recordCost}
	for _, part := range parts {
		r.size += len(part)
	}
	r.essential = channel != channelIOPub || !shows[kind]
	l.append(r)
	if channel == channelIOPub && kind == "status" {
		l.setBusy(readState(parts) == "busy")
	}
}

func (l *messageLog) setBusy(busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy, l.quietAt = busy, bootNow()
}

// idleSince is when the kernel was last busy; now while it is.
func (l *messageLog) idleSince() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy && !l.ended {
		return bootNow()
	}
	return l.quietAt
}

// addLost notes a message that was too large to keep, of which only the first parts are there.
func (l *messageLog) addLost(channel int, parts [][]byte) {
	_, parent := readIDs(parts)
	l.append(lostMessage(channel, parent))
}

func (l *messageLog) append(r kernelMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enter(r)
}

// enter numbers a record and makes room for it. The lock is held.
func (l *messageLog) enter(r kernelMessage) {
	l.last++
	r.seq = l.last
	l.records = append(l.records, r)
	l.bytes += r.size
	if l.bytes > mostLogBytes || len(l.records) > mostRecords {
		l.evict()
	}
	l.wake()
}

// newest is the seq of the newest record.
func (l *messageLog) newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *messageLog) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// shows are the messages that say nothing of how a cell went.
var shows = map[string]bool{
	"stream": true, "display_data": true, "update_display_data": true, "execute_result": true,
	"clear_output": true, "comm_open": true, "comm_msg": true, "comm_close": true, "debug_event": true,
}

// readIDs finds a message's type and its parent's id. Whatever cannot be read is "".
func readIDs(parts [][]byte) (kind, parent string) {
	var header, origin struct {
		ID   string `json:"msg_id"`
		Kind string `json:"msg_type"`
	}
	if i := slices.IndexFunc(parts, isDelimiter); i >= 0 && i+3 < len(parts) {
		_ = json.Unmarshal(parts[i+2], &header)
		_ = json.Unmarshal(parts[i+3], &origin)
	}
	if len(origin.ID) > mostMessageID { // nobody has sent one with such an id
		origin.ID = ""
	}
	return header.Kind, origin.ID
}

// readState is what a status says of its kernel.
func readState(parts [][]byte) string {
	var content struct {
		State string `json:"execution_state"`
	}
	if i := slices.IndexFunc(parts, isDelimiter); i >= 0 && i+5 < len(parts) {
		_ = json.Unmarshal(parts[i+5], &content)
	}
	return content.State
}

func isDelimiter(part []byte) bool { return bytes.Equal(part, delimiter) }

// evict forgets the oldest messages, first those that only show something, and puts how many they
// were in their place. The lock is held.
func (l *messageLog) evict() {
	target := mostLogBytes - evictedAtOnce
	for _, sparing := range []bool{true, false} {
		excess := max(0, len(l.records)-mostRecords*7/8)
		kept := l.records[:0]
		for _, r := range l.records {
			if r.parts != nil && !(sparing && r.essential) && (l.bytes > target || excess > 0) {
				l.bytes -= r.size - recordCost
				r.lost, r.lostBytes, r.size, r.parts = 1, r.size-recordCost, recordCost, nil
			}
			if n := len(kept); n > 0 && r.parts == nil && kept[n-1].parts == nil && kept[n-1].isAbout(&r) {
				r.lost += kept[n-1].lost
				r.lostBytes += kept[n-1].lostBytes
				l.bytes -= recordCost
				excess--
				kept[n-1] = r
				continue
			}
			kept = append(kept, r)
		}
		clear(l.records[len(kept):])
		l.records = kept
		if l.bytes <= mostLogBytes && len(l.records) <= mostRecords {
			return
		}
	}
	for len(l.records) > mostRecords { // tombstones of ever other parents
		l.bytes -= l.records[0].size
		l.records = l.records[1:]
	}
}

// closed notes that one connection of the kernel has ended.
func (l *messageLog) closed() { l.quietted <- struct{}{} }

// drained returns once that many connections have ended; from then on nothing is added.
func (l *messageLog) drained(conns int) {
	for range conns {
		<-l.quietted
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
}

// take appends to frames what came after a seq, up to about a MiB. What was sent is told up to the seq
// `known` alone: whoever listens by then has sent the rest. It returns the seq up to which it went, and
// where that was nothing what to wait for; nil once nothing more comes.
func (l *messageLog) take(after, known uint64, frames []byte) (_ []byte, upTo uint64, changed chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records[l.indexAfter(after):] {
		if len(frames) > 0 && len(frames)+r.size > largestFrame {
			break
		}
		after = r.seq
		if r.channel == channelSent && r.seq > known {
			continue
		}
		if r.parts == nil {
			frames = appendJSON(frames, map[string]any{"gap": map[string]any{
				"seq": r.seq, "parent": r.parent, "channel": r.channel, "messages": r.lost, "bytes": r.lostBytes}})
			continue
		}
		frames = r.appendTo(frames)
	}
	if len(frames) == 0 && !l.ended {
		return frames, after, l.changed
	}
	return frames, after, nil
}

func (l *messageLog) indexAfter(after uint64) int {
	low, high := 0, len(l.records)
	for low < high {
		if mid := (low + high) / 2; l.records[mid].seq > after {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func (r *kernelMessage) appendTo(frames []byte) []byte {
	size := 9
	for _, part := range r.parts {
		size += 4 + len(part)
	}
	frames = append(frames, frameMessage)
	frames = binary.BigEndian.AppendUint32(frames, uint32(size))
	frames = binary.BigEndian.AppendUint64(frames, r.seq)
	frames = append(frames, byte(r.channel))
	for _, part := range r.parts {
		frames = binary.BigEndian.AppendUint32(frames, uint32(len(part)))
		frames = append(frames, part...)
	}
	return frames
}
