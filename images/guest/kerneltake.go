package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// A kernel may run before anybody has claimed the box, so that whoever does finds it there. Then a claim
// says things of which it has not heard: they are told to who takes it, for only they can speak with it.

// settingsFor are the claim's, or what stands in for it where there is none yet.
func (g *guest) settingsFor(expected *claimRequest) (*claim, error) {
	settings := g.settings()
	if settings.leaseID != "" || expected == nil {
		return settings, nil
	}
	c, problem := g.claimOf(expected)
	if problem != nil {
		return nil, problem
	}
	c.leaseID = "" // nobody's yet
	return c, makeWorkdir(c.workdir, c.user)
}

// request is what the kernel was started with, and what it was given since.
func (k *kernel) request() kernelRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// takeRequest is the body of POST /v1/kernels/{kid}/take.
type takeRequest struct {
	Env  map[string]string `json:"env"`
	Cwd  string            `json:"cwd"`
	Note json.RawMessage   `json:"note"`
}

// changes are what a kernel lacks that was started before the claim. Anew says that it can never have it:
// it has another user's rights, or other limits.
type changes struct {
	Env   map[string]string `json:"env"`
	Unset []string          `json:"unset"`
	Cwd   string            `json:"cwd"` // "" where it is there already
	Anew  bool              `json:"anew"`
}

// giveKernel gives a kernel to whoever wants it now, as if it were started by this request. Taken twice is as
// good as once, and says the same again.
func (g *guest) giveKernel(k *kernel, r *takeRequest) (*changes, *problem) {
	asked := k.request()
	request := kernelRequest{Env: r.Env, Cwd: r.Cwd, Note: r.Note}
	request.addTo(&asked)
	if p := request.check(k.id); p != nil {
		return nil, p
	}
	c, p := k.changesTo(g.settings(), g.base, &request)
	if p != nil {
		return nil, p
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = request
	return c, nil
}

// changesTo compares what a kernel was started with to what the request would start it with now.
func (k *kernel) changesTo(now *claim, base layer, r *kernelRequest) (*changes, *problem) {
	whoThen, p := k.began.account(r.User)
	if p != nil {
		return nil, p
	}
	whoNow, p := now.account(r.User)
	if p != nil {
		return nil, p
	}
	cwdThen, cwdNow := k.began.absolute(k.first.Cwd), now.absolute(r.Cwd)
	then := asLayer(buildEnv(whoThen, cwdThen, base, k.began.env, k.first.Env))
	wanted := asLayer(buildEnv(whoNow, cwdNow, base, now.env, r.Env))
	c := &changes{Env: layer{}, Unset: []string{}}
	for name, value := range wanted {
		if had, ok := then[name]; !ok || had != value {
			c.Env[name] = value
		}
	}
	for name := range then {
		if _, ok := wanted[name]; !ok {
			c.Unset = append(c.Unset, name)
		}
	}
	if cwdNow != cwdThen {
		c.Cwd = cwdNow
	}
	c.Anew = !whoThen.same(whoNow) || k.began.dropCaps != now.dropCaps || !slices.Equal(k.began.rlimits, now.rlimits)
	return c, nil
}

func (a account) same(b account) bool {
	return a.uid == b.uid && a.gid == b.gid && slices.Equal(a.groups, b.groups)
}

func asLayer(env []string) layer {
	values := make(layer, len(env))
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	return values
}

func (g *guest) takeKernel(w http.ResponseWriter, r *http.Request) error {
	var request takeRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	k, p := g.kernels.find(r.PathValue("kid"))
	if p != nil {
		return p
	}
	c, p := g.giveKernel(k, &request)
	if p != nil {
		return p
	}
	writeJSON(w, 200, map[string]any{"state": k.view(false).State, "changes": c})
	return nil
}
