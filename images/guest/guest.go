package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// olderProtocols are those of which all that was said in them means the same in this one.
var olderProtocols = []int{2, 3}

const (
	protocolNumber = 4

	// Exit statuses of the guest itself; the backend reads them as evidence.
	exitUsage       = 64
	exitNoUser      = 67
	exitTreeUndead  = 70
	exitLifeOver    = 71
	exitOrphanLimit = 72
)

// version is set by the build.
var version = "dev"

// guest is all that one agent knows.
type guest struct {
	bootID    string
	startedAt int64   // boot time
	user      string  // whom commands run as where nobody says; "" is the guest's own
	usual     account // the same, looked up
	base      layer   // what every command's environment starts from
	deadlines *deadlines
	processes *processTable
	execs     *execTable
	shells    *shellTable
	limits    *limitReader
	listeners *listenerTable
	kernels   *kernelTable
	trim      *trimmer
	cpus      *cpuMask     // that it may run on itself; nil where that is not known
	lastWord  atomic.Int64 // boot time of the daemon's last request

	lifeMu   sync.Mutex // guards what follows
	claim    *claim
	setup    *claim // what commands before the claim run with; nil before and after the set-up
	ready    bool
	lifeEnd  int64 // boot time; 0 for none
	lifeDue  *deadline
	orphanS  float64
	exitWith func(status int, why string)
}

func newGuest(o options) (*guest, error) {
	timers, err := newDeadlines()
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	processes, err := newProcessTable()
	if err != nil {
		return nil, err
	}
	usual, problem := findAccount(o.user)
	if problem != nil {
		exit(exitNoUser, problem.Detail)
	}
	g := &guest{
		bootID:    randomID(),
		startedAt: bootNow(),
		user:      o.user,
		usual:     usual,
		base:      baseEnv(o.inheritEnv),
		deadlines: timers,
		processes: processes,
		limits:    newLimitReader(o.cgroupRoot),
		cpus:      ownProcessors(),
		orphanS:   o.orphanLimitS,
		exitWith:  exit,
	}
	if o.legacy != "" {
		if g.limits.legacy, err = os.OpenFile(o.legacy, os.O_WRONLY, 0); err != nil {
			return nil, err
		}
	}
	g.execs = newExecTable(g)
	g.shells = newShellTable(g, o.shell)
	g.listeners = newListenerTable()
	g.kernels = newKernelTable(g)
	g.trim = &trimmer{guest: g}
	g.heard()
	g.watchOrphan()
	g.trim.plan()
	return g, nil
}

func randomID() string {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(raw[:])
}

func exit(status int, why string) {
	fmt.Fprintf(os.Stderr, "sandbox-guest: %s\n", why)
	os.Exit(status)
}

// heard notes a word from the daemon.
func (g *guest) heard() { g.lastWord.Store(bootNow()) }

// watchOrphan ends a guest that nobody claimed and nobody spoke to for the orphan limit.
func (g *guest) watchOrphan() {
	g.deadlines.at(g.lastWord.Load()+nanoseconds(g.orphanS), func() {
		switch {
		case g.currentClaim() != nil:
		case bootNow() < g.lastWord.Load()+nanoseconds(g.orphanS):
			g.watchOrphan()
		default:
			g.end(exitOrphanLimit, "nobody claimed it and the daemon is silent")
		}
	})
}

// end kills everything and exits. As the first process of a pid namespace the exit alone would do.
func (g *guest) end(status int, why string) {
	g.processes.killEverything()
	g.exitWith(status, why)
}

// setLife moves the hard end. The lock is held.
func (g *guest) setLife(lifeS *float64) {
	g.deadlines.stop(g.lifeDue)
	g.lifeDue, g.lifeEnd = nil, 0
	if lifeS == nil {
		return
	}
	end := bootNow() + nanoseconds(*lifeS)
	g.lifeEnd = end
	g.lifeDue = g.deadlines.at(end, func() {
		g.lifeMu.Lock()
		over := g.lifeEnd != 0 && g.lifeEnd <= bootNow()
		g.lifeMu.Unlock()
		if over {
			g.end(exitLifeOver, "its life is over")
		}
	})
}

func (g *guest) lifeLeft() *float64 {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.lifeEnd == 0 {
		return nil
	}
	left := max(float64(g.lifeEnd-bootNow())/1e9, 0)
	return &left
}

func (g *guest) currentClaim() *claim {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	return g.claim
}
