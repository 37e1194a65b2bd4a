package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// joined is what the frames bring of each stream; it checks that numbers and offsets have no holes.
func joined(t *testing.T, frames []frame, seq int64, offsets [2]int64) (streams [2][]byte) {
	t.Helper()
	for _, f := range frames {
		if f.kind == frameJSON {
			continue
		}
		which := int(f.kind) - frameStdout
		if f.seq <= seq || f.offset != offsets[which] {
			t.Fatalf("piece %d at %d behind piece %d and offset %d", f.seq, f.offset, seq, offsets[which])
		}
		seq = f.seq
		offsets[which] += int64(len(f.data))
		streams[which] = append(streams[which], f.data...)
	}
	return streams
}

func endOf(t *testing.T, frames []frame) (seq int64, r execRecord) {
	t.Helper()
	if len(frames) == 0 {
		t.Fatal("no frames")
	}
	var ended struct {
		Seq  int64      `json:"seq"`
		Exec execRecord `json:"exec"`
	}
	if err := json.Unmarshal(frames[len(frames)-1].control["ended"], &ended); err != nil {
		t.Fatalf("the last frame is no end: %v", frames[len(frames)-1])
	}
	return ended.Seq, ended.Exec
}

const chatter = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 12"

func TestAttachShowsAllInOrderThenTheEnd(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sh", "-c", chatter})
	frames := g.attach(r.ExecID, "").all()
	if frames[0].control["started"] == nil {
		t.Fatal("no start")
	}
	streams := joined(t, frames, 1, [2]int64{})
	seq, record := endOf(t, frames)
	if record.summary() != "exited 12" || seq != frames[len(frames)-2].seq+1 {
		t.Fatalf("%s %d", record.summary(), seq)
	}
	whole := g.look(r.ExecID, 0)
	if !bytes.Equal(streams[0], whole.Stdout.Head) || !bytes.Equal(streams[1], whole.Stderr.Head) {
		t.Fatal("the frames differ from the record")
	}
}

func TestResumeAfterASequenceNumberIsExact(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sh", "-c", chatter})
	whole := g.attach(r.ExecID, "after=0").all()
	pieces := whole[1 : len(whole)-1]
	for _, cut := range []int{0, 1, len(pieces) / 2, len(pieces) - 1} {
		again := g.attach(r.ExecID, fmt.Sprintf("after=%d", pieces[cut].seq)).all()
		rest := pieces[cut+1:]
		if len(again) != len(rest)+1 {
			t.Fatalf("%d frames, want %d", len(again), len(rest)+1)
		}
		for i := range rest {
			if again[i].seq != rest[i].seq || again[i].kind != rest[i].kind || !bytes.Equal(again[i].data, rest[i].data) {
				t.Fatalf("piece %d differs", rest[i].seq)
			}
		}
	}
	seq, _ := endOf(t, whole)
	if again := g.attach(r.ExecID, fmt.Sprintf("after=%d", seq-1)).all(); len(again) != 1 {
		t.Fatalf("%d frames behind the last piece", len(again))
	}
}

func TestResumeAtOffsetsIsExact(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sh", "-c", chatter})
	whole := g.look(r.ExecID, 10)
	for _, at := range [][2]int64{{0, 0}, {7, 3}, {1000, 2000}, {whole.Stdout.Bytes, 0}, {whole.Stdout.Bytes, whole.Stderr.Bytes}} {
		frames := g.attach(r.ExecID, fmt.Sprintf("stdout=%d&stderr=%d", at[0], at[1])).all()
		streams := joined(t, frames, 1, at)
		if !bytes.Equal(streams[0], whole.Stdout.Head[at[0]:]) || !bytes.Equal(streams[1], whole.Stderr.Head[at[1]:]) {
			t.Fatalf("at %v: %d %d", at, len(streams[0]), len(streams[1]))
		}
	}
}

func TestPiecesAreCutAtCharacterBorders(t *testing.T) {
	g := startGuest(t)
	for k := range 3 {
		text := strings.Repeat("a", k) + strings.Repeat("€", 200_000)
		r := g.start([]string{"cat"}, fields{"stdin_open": true, "output_limit_bytes": 2 << 20})
		a := g.attach(r.ExecID, "")
		go g.send("POST", "/v1/execs/"+r.ExecID+"/stdin?eof=1", strings.NewReader(text))
		frames := a.all()
		for _, f := range frames {
			if f.kind != frameJSON && !utf8.Valid(f.data) {
				t.Fatalf("piece %d is cut inside a character", f.seq)
			}
		}
		if got := joined(t, frames, 1, [2]int64{}); string(got[0]) != text {
			t.Fatalf("k=%d: %d bytes of %d", k, len(got[0]), len(text))
		}
	}
}

func TestIncompleteCharacterComesAtTheEnd(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"printf", `ab\342\202`})
	frames := g.attach(r.ExecID, "").all()
	if got := joined(t, frames, 1, [2]int64{}); string(got[0]) != "ab\xe2\x82" {
		t.Fatalf("%q", got[0])
	}
}

func TestReaderThatComesLateIsToldTheGap(t *testing.T) {
	g := startGuest(t)
	r := g.run([]string{"head", "-c", "3000000", "/dev/zero"}, fields{"output_limit_bytes": 200_000})
	frames := g.attach(r.ExecID, "").all()
	var at, lost, last int64
	for _, f := range frames {
		if raw := f.control["gap"]; raw != nil {
			var gap gapNote
			must(t, json.Unmarshal(raw, &gap))
			if gap.Stream != "stdout" || gap.Offset != at || gap.Seq < last {
				t.Fatalf("%+v at %d", gap, at)
			}
			at += gap.Bytes
			lost += gap.Bytes
			last = gap.Seq
		} else if f.kind == frameStdout {
			if f.offset != at || f.seq <= last {
				t.Fatalf("piece at %d, want %d", f.offset, at)
			}
			at += int64(len(f.data))
			last = f.seq
		}
	}
	if at != 3_000_000 || lost < 2_000_000 || lost > 2_800_000 {
		t.Fatalf("%d bytes, %d lost", at, lost)
	}
}

func TestSlowReaderHoldsThePipeBackAndLosesNothing(t *testing.T) {
	g := startGuest(t)
	const size = 8 << 20
	r := g.start([]string{"sh", "-c", fmt.Sprintf("read x; head -c %d /dev/zero; echo end >&2", size)},
		fields{"stdin_open": true, "output_limit_bytes": 1000})
	a := g.attach(r.ExecID, "")
	a.write(frameStdin, []byte("go\n"))
	a.next()
	// While nothing is read the command stays blocked: its output stands still at the same count twice.
	var before int64 = -1
	eventually(t, "the output stands still", func() bool {
		now := g.look(r.ExecID, 0.1).Stdout.Bytes
		still := now > 0 && now == before
		before = now
		return still
	})
	if before >= size {
		t.Fatal("nothing was held back")
	}
	streams := joined(t, a.all(), 1, [2]int64{})
	if len(streams[0]) != size || string(streams[1]) != "end\n" {
		t.Fatalf("%d bytes", len(streams[0]))
	}
	if r := g.look(r.ExecID, 5); r.Stdout.Gap != size-1000 {
		t.Fatalf("kept too much: gap %d", r.Stdout.Gap)
	}
}

func TestReaderThatTakesNothingIsDropped(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	w := &frameWriter{conn: ours, patience: 50 * time.Millisecond}
	if w.write(make([]byte, 100)) == nil {
		t.Fatal("it is still waited for")
	}
}

func TestSeveralReadersSeeTheSame(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"sh", "-c", "read x; " + chatter}, fields{"stdin_open": true})
	a, b := g.attach(r.ExecID, ""), g.attach(r.ExecID, "")
	a.write(frameStdin, []byte("go\n"))
	first, second := a.all(), b.all()
	if len(first) != len(second) {
		t.Fatalf("%d and %d frames", len(first), len(second))
	}
	for i := range first {
		if first[i].seq != second[i].seq || !bytes.Equal(first[i].data, second[i].data) {
			t.Fatalf("frame %d differs", i)
		}
	}
}

func TestStdinFramesAndTheirEndReachTheCommand(t *testing.T) {
	g := startGuest(t)
	r := g.start([]string{"cat"}, fields{"stdin_open": true})
	a := g.attach(r.ExecID, "")
	a.write(frameStdin, []byte("one "))
	a.write(frameStdin, []byte("two"))
	a.write(frameStdin, nil)
	frames := a.all()
	if got := joined(t, frames, 1, [2]int64{}); string(got[0]) != "one two" {
		t.Fatalf("%q", got[0])
	}
}

func TestAttachWithoutUpgradeIsRefused(t *testing.T) {
	g := startGuest(t)
	r := g.sh("true")
	if a := g.send("GET", "/v1/execs/"+r.ExecID+"/attach", nil); a.code(t) != "422 bad_request" {
		t.Fatalf("%s", a.body)
	}
}

// TestOutputKeepsItsPromisesForAnySplit feeds an output pieces of many sizes and compares what is kept
// with a plain model.
func TestOutputKeepsItsPromisesForAnySplit(t *testing.T) {
	for _, limit := range []int64{0, 1, 2, 7, 100, 9_000, 200_000} {
		for _, size := range []int{1, 3, 100, 5_000, 70_000} {
			var budget atomic.Int64
			var o output
			o.open(limit, &budget)
			var whole []byte
			for n := 0; n < 12; n++ {
				data := bytes.Repeat([]byte{byte('a' + n)}, size)
				whole = append(whole, data...)
				o.append(stdout, data)
				checkKept(t, &o, limit, whole)
			}
			o.finish()
			checkKept(t, &o, limit, whole)
			o.dropText()
			if budget.Load() != 0 {
				t.Fatalf("limit %d, pieces of %d: %d bytes still counted", limit, size, budget.Load())
			}
		}
	}
}

func checkKept(t *testing.T, o *output, limit int64, whole []byte) {
	t.Helper()
	k := o.kept(stdout)
	total := int64(len(whole))
	if k.Bytes != total {
		t.Fatalf("%d bytes, want %d", k.Bytes, total)
	}
	if total <= limit {
		if k.Gap != 0 || !bytes.Equal(k.Head, whole) || len(k.Tail) != 0 {
			t.Fatalf("limit %d: not whole at %d", limit, total)
		}
		return
	}
	head, tail := limit-limit/2, limit/2
	if !bytes.Equal(k.Head, whole[:head]) || !bytes.Equal(k.Tail, whole[total-tail:]) || k.Gap != total-limit {
		t.Fatalf("limit %d: head %d tail %d gap %d of %d", limit, len(k.Head), len(k.Tail), k.Gap, total)
	}
}

func TestJournalIsBoundedAndTellsWhatItForgot(t *testing.T) {
	var o output
	o.open(1<<20, nil)
	const n = mostPieces + 10_000
	for range n {
		o.append(stdout, []byte("x"))
	}
	o.finish()
	if len(o.journal) > mostPieces {
		t.Fatalf("%d pieces", len(o.journal))
	}
	r := o.attachAfter(5)
	frames, _ := o.take(r, nil)
	kind, payload, err := readFrame(bytes.NewReader(frames), nil)
	if err != nil || kind != frameJSON || !bytes.Contains(payload, []byte(`"gap"`)) {
		t.Fatalf("%d %q", kind, payload)
	}
	if o.endSeq() != n+2 {
		t.Fatalf("the end is %d", o.endSeq())
	}
}
