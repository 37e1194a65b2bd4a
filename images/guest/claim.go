package main

import (
	"cmp"
	"path"
	"sync/atomic"
	"syscall"
)

// claimRequest is the body of POST /v1/claim.
type claimRequest struct {
	LeaseID      string            `json:"lease_id"`
	Env          map[string]string `json:"env"`
	Workdir      string            `json:"workdir"`
	User         string            `json:"user"`
	Capabilities string            `json:"capabilities"`
	LifeS        *float64          `json:"life_s"`
	Files        []claimFile       `json:"files"`
	Nofile       *uint64           `json:"nofile"`
	Nproc        *uint64           `json:"nproc"`
	AddressSpace *uint64           `json:"max_rss_as_bytes"`
	Affinity     *affinity         `json:"affinity"`
}

type claimFile struct {
	Path string  `json:"path"`
	Data []byte  `json:"data_b64"`
	Mode *uint32 `json:"mode"`
}

// claim is what a lease laid down for every later call. It never changes, but for what was seen since.
type claim struct {
	leaseID  string
	at       int64 // boot time
	env      map[string]string
	workdir  string
	user     account
	dropCaps bool
	rlimits  []rlimit64
	cpus     *cpuMask    // that commands run on; nil for all that the guest may use
	shell    string      // that there was; "" for none
	entered  atomic.Bool // a command of the user's has begun in the workdir
}

var unclaimed = claim{workdir: "/"}

// settings are the claim's, or the set-up's, or those of a guest that has heard of neither.
func (g *guest) settings() *claim {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	switch {
	case g.claim != nil:
		return g.claim
	case g.setup != nil:
		return g.setup
	}
	return &claim{workdir: unclaimed.workdir, user: g.usual}
}

func (r *claimRequest) check() *problem {
	if !validID(r.LeaseID) {
		return fail("bad_request", "lease_id is not valid")
	}
	return r.checkTerms()
}

// checkTerms checks all but whose it is.
func (r *claimRequest) checkTerms() *problem {
	switch {
	case r.Capabilities != "" && r.Capabilities != "image" && r.Capabilities != "none":
		return fail("bad_request", `capabilities is neither "image" nor "none"`)
	case r.LifeS != nil && !(*r.LifeS >= 0):
		return fail("bad_request", "life_s is negative")
	case hasNUL(r.Workdir) || hasNUL(r.User):
		return fail("bad_request", "workdir or user has a zero byte")
	case r.Workdir != "" && r.Workdir[0] != '/':
		return fail("bad_request", "workdir is not absolute")
	}
	for _, f := range r.Files {
		if f.Path == "" || hasNUL(f.Path) {
			return fail("bad_request", "files: %q is not a path", f.Path)
		}
	}
	if p := r.Affinity.check(); p != nil {
		return p
	}
	return checkEnv(r.Env)
}

// take claims the box: workdir and files are made first, so a claim that fails leaves it unclaimed.
// The same lease again is success without effect.
func (g *guest) take(r *claimRequest) error {
	if p := r.check(); p != nil {
		return p
	}
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.claim != nil {
		if g.claim.leaseID == r.LeaseID {
			return nil
		}
		return fail("conflict", "the box is claimed by another lease").with("lease_id", g.claim.leaseID)
	}
	if g.setup != nil {
		return fail("conflict", "the box is still being set up")
	}
	c, problem := g.claimOf(r)
	if problem != nil {
		return problem
	}
	if err := c.furnish(r.Files); err != nil {
		return err
	}
	c.at, c.shell = bootNow(), g.shells.kind()
	g.claim = c
	g.processes.move(c.cpus)
	g.setLife(r.LifeS)
	return nil
}

// claimOf is what a claim says, before anything is done for it.
func (g *guest) claimOf(r *claimRequest) (*claim, *problem) {
	// Asked for anew: the set-up may have changed the user's groups.
	user, problem := findAccount(cmp.Or(r.User, g.user))
	if problem != nil {
		return nil, problem
	}
	c := &claim{leaseID: r.LeaseID, env: r.Env, workdir: path.Clean("/" + r.Workdir), user: user,
		dropCaps: r.Capabilities == "none", cpus: r.Affinity.within(g.cpus)}
	c.addRlimit(syscall.RLIMIT_NOFILE, r.Nofile)
	c.addRlimit(rlimitNproc, r.Nproc)
	c.addRlimit(syscall.RLIMIT_AS, r.AddressSpace)
	return c, nil
}

const rlimitNproc = 6

func (c *claim) addRlimit(resource uint64, value *uint64) {
	if value == nil {
		return
	}
	var now syscall.Rlimit
	most := *value
	if syscall.Getrlimit(int(resource), &now) == nil {
		most = min(most, now.Max)
	}
	c.rlimits = append(c.rlimits, rlimit64{resource, most, most})
}

// furnish makes the workdir, owned by the user, and writes the files.
func (c *claim) furnish(files []claimFile) error {
	if err := makeWorkdir(c.workdir, c.user); err != nil {
		return err
	}
	for _, f := range files {
		mode := uint32(defaultFileMode)
		if f.Mode != nil {
			mode = *f.Mode
		}
		if err := writeWhole(c.user, c.absolute(f.Path), f.Data, mode); err != nil {
			p := asProblem(err)
			return p.with("path", f.Path)
		}
	}
	return nil
}

// absolute is where a path leads: relative ones start at the workdir.
func (c *claim) absolute(p string) string {
	if p == "" {
		return c.workdir
	}
	if p[0] != '/' {
		return c.workdir + "/" + p
	}
	return p
}

// account resolves the user that a call names; "" is the claim's.
func (c *claim) account(user string) (account, *problem) {
	if user == "" {
		return c.user, nil
	}
	return findAccount(user)
}
