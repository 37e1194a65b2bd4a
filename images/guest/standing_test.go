package main

import (
	"strings"
	"testing"
)

func TestAServerThatRunsIsNoUseOfTheBox(t *testing.T) {
	g := startGuest(t)
	g.post("/v1/claim", fields{"lease_id": "lease"})
	server := g.start([]string{"sleep", "60"}, fields{"standing": true})
	if told := g.call("GET", "/v1/hello", nil).json(t)["execs_running"]; told != 0.0 {
		t.Errorf("%v run", told)
	}
	g.start([]string{"sleep", "60"})
	if told := g.call("GET", "/v1/hello", nil).json(t)["execs_running"]; told != 1.0 {
		t.Errorf("%v run", told)
	}
	g.post("/v1/execs/"+server.ExecID+"/signal", fields{"signal": "KILL"})
	g.look(server.ExecID, 5)
	if told := g.call("GET", "/v1/hello", nil).json(t)["execs_running"]; told != 1.0 {
		t.Errorf("%v run", told)
	}
}

func TestACommandBeforeTheClaimRunsAsItIsExpectedTo(t *testing.T) {
	g := startGuest(t)
	expected := fields{"env": map[string]string{"A": "expected"}, "workdir": "/tmp"}
	said := g.sh(`echo "$A $PWD"`, fields{"expected": expected})
	if text := strings.TrimSpace(string(said.Stdout.Head)); text != "expected /tmp" {
		t.Errorf("%q", text)
	}
	g.post("/v1/claim", fields{"lease_id": "lease", "env": map[string]string{"A": "claimed"}})
	said = g.sh(`echo "$A"`, fields{"expected": expected})
	if text := strings.TrimSpace(string(said.Stdout.Head)); text != "claimed" {
		t.Errorf("%q", text)
	}
	wrong := g.post("/v1/execs", fields{"exec_id": "w", "argv": []string{"true"}, "expected": fields{"workdir": "relative"}})
	if wrong.status != 422 && wrong.status != 400 {
		t.Errorf("%d %s", wrong.status, wrong.body)
	}
}
