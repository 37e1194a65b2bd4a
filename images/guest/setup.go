package main

import (
	"net/http"
	"path"
)

// setupRequest is the body of POST /v1/setup.
type setupRequest struct {
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    string            `json:"user"`
}

func (r *setupRequest) check() *problem {
	switch {
	case hasNUL(r.Workdir) || hasNUL(r.User):
		return fail("bad_request", "workdir or user has a zero byte")
	case r.Workdir != "" && r.Workdir[0] != '/':
		return fail("bad_request", "workdir is not absolute")
	}
	return checkEnv(r.Env)
}

// beginSetup lays down what commands run with until the box is ready. Nobody named is the guest's own
// user here, not the usual one: a set-up installs what that one may then only use.
func (g *guest) beginSetup(r *setupRequest) error {
	if p := r.check(); p != nil {
		return p
	}
	user, problem := findAccount(r.User)
	if problem != nil {
		return problem
	}
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.claim != nil || g.ready {
		return fail("conflict", "the box is ready or claimed")
	}
	c := &claim{env: r.Env, workdir: path.Clean("/" + r.Workdir), user: user}
	if err := makeWorkdir(c.workdir, c.user); err != nil {
		return err
	}
	g.setup = c
	return nil
}

// endSetup makes the box ready. No command of the set-up is known from here on; what they left running
// stays.
func (g *guest) endSetup() error {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.claim != nil {
		return fail("conflict", "the box is claimed")
	}
	if !g.execs.forgetEnded() {
		return fail("conflict", "a command of the set-up still runs")
	}
	g.setup, g.ready = nil, true
	return nil
}

func (g *guest) isReady() bool {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	return g.ready
}

func (g *guest) postSetup(w http.ResponseWriter, r *http.Request) error {
	var request setupRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if err := g.beginSetup(&request); err != nil {
		return err
	}
	writeJSON(w, 200, struct{}{})
	return nil
}

func (g *guest) postReady(w http.ResponseWriter, _ *http.Request) error {
	if err := g.endSetup(); err != nil {
		return err
	}
	writeJSON(w, 200, struct{}{})
	return nil
}
