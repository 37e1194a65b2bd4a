package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestInputIsSentAgainThoughItsFirstSenderFellSilent(t *testing.T) {
	g := startGuest(t)
	data := bytes.Repeat([]byte("0123456789"), 20_000)
	r := g.start([]string{"sha256sum"}, fields{"stdin_open": true, "stdin_b64": "MDEyMzQ="}) // 01234
	path := "/v1/execs/" + r.ExecID + "/stdin"
	body, silent := io.Pipe()
	sent := make(chan answer, 1)
	go func() { sent <- g.send("POST", path+"?offset=5", body) }()
	_, err := silent.Write(data[5:100_000])
	must(t, err)

	again := make(chan answer, 1)
	go func() { again <- g.send("POST", path+"?offset=5&eof=1", bytes.NewReader(data[5:])) }()
	select {
	case a := <-again:
		if a.status != 200 || int(a.json(t)["offset"].(float64)) != len(data) {
			t.Fatalf("%d %s", a.status, a.body)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for whoever fell silent")
	}
	if r := g.look(r.ExecID, 20); !strings.HasPrefix(string(r.Stdout.Head), digest(data)) {
		t.Fatalf("%s %q", r.summary(), r.Stdout.Head)
	}
	_, err = silent.Write(data[100_000:])
	must(t, err)
	silent.Close()
	if a := <-sent; a.status != 200 || fmt.Sprint(a.json(t)["offset"]) != "200000" {
		t.Fatalf("what was taken already is skipped: %d %s", a.status, a.body)
	}
}
