package main

import (
	"os"
	"testing"
)

func (g *testGuest) warmKernel(id string, expected map[string]any) {
	g.t.Helper()
	self, _ := os.Executable()
	a := g.call("PUT", "/v1/kernels/"+id, map[string]any{
		"argv": []string{self, connectionFile}, "env": map[string]string{"SANDBOX_GUEST_TEST_KERNEL": "1"},
		"note": map[string]any{"kernel_id": id}, "expected": expected,
	})
	if a.status != 201 {
		g.t.Fatalf("%d: %s", a.status, a.body)
	}
}

func (g *testGuest) takeKernel(id string, body map[string]any) map[string]any {
	g.t.Helper()
	a := g.call("POST", "/v1/kernels/"+id+"/take", body)
	if a.status != 200 {
		g.t.Fatalf("%d: %s", a.status, a.body)
	}
	return a.json(g.t)["changes"].(map[string]any)
}

func TestAKernelFromBeforeTheClaimIsToldWhatTheClaimChanges(t *testing.T) {
	g := startGuest(t)
	early, late := t.TempDir()+"/early", t.TempDir()+"/late"
	g.warmKernel("k", map[string]any{"env": map[string]string{"SAME": "1", "OTHER": "1", "GONE": "1"}, "workdir": early})
	if info, err := os.Stat(early); err != nil || !info.IsDir() {
		t.Errorf("%v: its workdir was to be made", err)
	}
	g.post("/v1/claim", fields{"lease_id": "lease", "workdir": late, "env": map[string]string{"SAME": "1", "OTHER": "2", "NEW": "3"}})
	take := map[string]any{"env": map[string]string{"OWN": "4"}, "note": map[string]any{"kernel_id": "mine"}}
	for range 2 {
		told := g.takeKernel("k", take)
		env := told["env"].(map[string]any)
		if len(env) != 4 || env["OTHER"] != "2" || env["NEW"] != "3" || env["OWN"] != "4" || env["PWD"] != late {
			t.Errorf("%v", env)
		}
		unset := told["unset"].([]any)
		if len(unset) != 1 || unset[0] != "GONE" || told["cwd"] != late || told["anew"] != false {
			t.Errorf("%v", told)
		}
	}
	shown := g.call("GET", "/v1/kernels/k", nil).json(t)
	if shown["note"].(map[string]any)["kernel_id"] != "mine" || shown["state"] == "dead" {
		t.Errorf("%v", shown)
	}
}

func TestAKernelThatTheClaimDoesNotChangeLacksNothing(t *testing.T) {
	g := startGuest(t)
	claim := map[string]any{"env": map[string]string{"A": "1"}, "workdir": t.TempDir(), "nofile": 200}
	g.warmKernel("k", claim)
	claim["lease_id"] = "lease"
	g.call("POST", "/v1/claim", claim)
	told := g.takeKernel("k", map[string]any{"note": map[string]any{}})
	if len(told["env"].(map[string]any)) != 0 || len(told["unset"].([]any)) != 0 || told["cwd"] != "" || told["anew"] != false {
		t.Errorf("%v", told)
	}
}

func TestAKernelWithOtherLimitsThanTheClaimsMustBeStartedAnew(t *testing.T) {
	g := startGuest(t)
	g.warmKernel("k", map[string]any{"workdir": "/"})
	g.post("/v1/claim", fields{"lease_id": "lease", "nofile": 100})
	if told := g.takeKernel("k", map[string]any{"note": map[string]any{}}); told["anew"] != true {
		t.Errorf("%v", told)
	}
}

func TestAKernelThatIsStartedLikeATakenOneHasItsVariables(t *testing.T) {
	g := startGuest(t)
	g.call("PUT", "/v1/kernels/k", map[string]any{
		"argv": []string{"sh", "-c", "echo own=$OWN >&2"}, "note": map[string]any{}, "expected": map[string]any{"workdir": "/"},
	})
	g.post("/v1/claim", fields{"lease_id": "lease"})
	g.takeKernel("k", map[string]any{"env": map[string]string{"OWN": "1"}, "note": map[string]any{}})
	if a := g.call("PUT", "/v1/kernels/k.2", map[string]any{"like": "k", "note": map[string]any{}}); a.status != 201 {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	all := g.attachKernel("k.2", 0).until(func(s said) bool { return s.json["ended"] != nil })
	ended := all[len(all)-1].json["ended"].(map[string]any)
	if words := ended["stderr"].(map[string]any)["head_b64"]; words != "b3duPTEK" { // own=1
		t.Errorf("%v", ended)
	}
}

func TestAWrongExpectationStartsNothing(t *testing.T) {
	g := startGuest(t)
	self, _ := os.Executable()
	for _, wrong := range []map[string]any{{"user": "nobody-has-this-name"}, {"workdir": "relative"}, {"capabilities": "some"}} {
		a := g.call("PUT", "/v1/kernels/k", map[string]any{"argv": []string{self}, "note": map[string]any{}, "expected": wrong})
		if a.status/100 == 2 {
			t.Errorf("%v: %d", wrong, a.status)
		}
	}
	if kernels := g.call("GET", "/v1/kernels", nil).json(t)["kernels"].([]any); len(kernels) != 0 {
		t.Errorf("%v", kernels)
	}
}
