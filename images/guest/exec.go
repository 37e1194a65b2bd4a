package main

import (
	"path"
	"sync"
	"syscall"
	"time"

	"guest/early"
)

const (
	outcomeExited      = "exited"
	outcomeSignaled    = "signaled"
	outcomeTimeout     = "timeout"
	outcomeKilled      = "killed"
	outcomeOOM         = "oom"
	outcomeStartFailed = "start_failed"
	outcomeLost        = "lost"
)

// execRequest is the body of POST /v1/execs.
type execRequest struct {
	ExecID      string            `json:"exec_id"`
	Fingerprint string            `json:"fingerprint"`
	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env"`
	Cwd         string            `json:"cwd"`
	User        string            `json:"user"`
	TimeoutS    *float64          `json:"timeout_s"`
	Stdin       *[]byte           `json:"stdin_b64"`
	StdinOpen   bool              `json:"stdin_open"`
	TTY         *terminalSize     `json:"tty"`
	OutputLimit *int64            `json:"output_limit_bytes"`
	Wait        bool              `json:"wait"`
	Standing    bool              `json:"standing"`
	Expected    *claimRequest     `json:"expected"` // stands in for the claim where there is none yet
}

func (r *execRequest) check() *problem {
	if p := checkRun(r.ExecID, r.TimeoutS, r.OutputLimit); p != nil {
		return p
	}
	if len(r.Argv) == 0 {
		return fail("bad_request", "argv is empty")
	}
	for i, arg := range r.Argv {
		if hasNUL(arg) {
			return fail("bad_request", "argv: element %d has a zero byte", i)
		}
	}
	if hasNUL(r.Cwd) || hasNUL(r.User) {
		return fail("bad_request", "cwd or user has a zero byte")
	}
	if r.Expected != nil {
		if p := r.Expected.checkTerms(); p != nil {
			return p
		}
	}
	if r.TTY != nil {
		if p := r.TTY.check(); p != nil {
			return p
		}
	}
	return checkEnv(r.Env)
}

// checkRun checks what commands and runs in shells have in common.
func checkRun(id string, timeoutS *float64, limit *int64) *problem {
	switch {
	case !validID(id):
		return fail("bad_request", "exec_id is not valid")
	case timeoutS != nil && !(*timeoutS >= 0):
		return fail("bad_request", "timeout_s is negative")
	case limit != nil && (*limit < 0 || *limit > 1<<32):
		return fail("bad_request", "output_limit_bytes is not in 0 to %d", int64(1)<<32)
	}
	return nil
}

// Exec is one command, or one run in a shell: create-or-attach by its id.
type Exec struct {
	id          string
	fingerprint string
	output      output
	stdin       stdin
	terminal    *terminal // nil where it has pipes
	standing    bool      // a server: that it runs is no use
	apart       bool      // a kernel: no command that anybody asked for, so not in the table
	process     *process  // nil for a run in a shell
	run         *shellRun
	launched    chan struct{} // closed once it was started or could not be
	done        chan struct{} // closed once the record is complete

	startedAt time.Time
	kills     kills         // as counted before it began
	crowd     int64         // likewise
	judge     func(*result) // what else there is to say of its end; nil for nothing

	mu      sync.Mutex // guards what follows
	stop    string     // outcome that we force: timeout or killed
	stopped chan struct{}
	signals uint64 // bit set of the signals that callers sent
	ended   bool
	result  result
}

// result is how it went; complete once done is closed.
type result struct {
	outcome, reason, detail string
	exitCode                int
	signal                  string
	oomKills                int64
	hostShort               bool // the machine's want, not the sandbox's
	fromInside              bool // what it wanted was there at the claim, and only the sandbox took it away
	duration                time.Duration
	survivors               bool
	shellEnded, interrupted bool
}

func newExec(id, fingerprint string) *Exec {
	return &Exec{
		id: id, fingerprint: fingerprint,
		launched: make(chan struct{}), done: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// newApart is one that stands in no table.
func newApart(id string) *Exec {
	e := newExec(id, "")
	e.apart = true
	return e
}

// forceEnd makes the command end with this outcome, unless it ended or is being ended. It reports
// whether it still ran.
func (e *Exec) forceEnd(outcome string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	if e.stop == "" {
		e.stop = outcome
		close(e.stopped)
	}
	return true
}

// endedByCaller says whether a caller had a hand in its end.
func (e *Exec) endedByCaller() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop == outcomeKilled || e.signals != 0
}

// prepare turns a request into a launch. A failure is the command's own: reason and detail.
func (g *guest) prepare(r *execRequest, settings *claim) (l *launch, reason, detail string) {
	who, p := settings.account(r.User)
	if p != nil {
		return nil, "bad_user", p.Detail
	}
	cwd := settings.absolute(r.Cwd)
	env := buildEnv(who, cwd, g.base, r.terminalEnv(), settings.env, r.Env)
	return newLaunch(r.Argv, env, r.Cwd, who, settings)
}

// newLaunch prepares argv for who, in cwd as the call gave it.
func newLaunch(argv, env []string, cwd string, who account, settings *claim) (l *launch, reason, detail string) {
	l = &launch{
		rlimitN:  0,
		oomPath:  oomScorePath,
		oomValue: [4]byte{'5', '0', '0'},
		shimName: shimName,
		dropCaps: settings.dropCaps,
		cpus:     settings.cpus,
		capHead:  [2]uint32{capVersion3, 0},
	}
	for i := range l.ones {
		l.ones[i] = 0xFF
	}
	var err1, err2 error
	l.argv, err1 = syscall.SlicePtrFromStrings(argv)
	l.envv, err2 = syscall.SlicePtrFromStrings(env)
	if err1 != nil || err2 != nil {
		return nil, "not_found", "a zero byte in argv or env"
	}
	for _, path := range candidates(argv[0], lookup(env, "PATH")) {
		if at, err := syscall.BytePtrFromString(path); err == nil {
			l.paths = append(l.paths, at)
		}
	}
	dir, err1 := syscall.BytePtrFromString(settings.absolute(cwd))
	workdir, err2 := syscall.BytePtrFromString(settings.workdir)
	if err1 != nil || err2 != nil {
		return nil, "bad_cwd", "a zero byte in cwd"
	}
	l.dir = dir
	if !path.IsAbs(cwd) {
		l.workdir = workdir
	}
	l.setUser, l.uid, l.gid, l.groups = who.switched, uintptr(who.uid), uintptr(who.gid), who.groups
	l.addRlimits(settings)
	l.stacks = new([2][stackWords]uint64)
	return l, "", ""
}

const shimComm = "sandbox-shim"

var (
	oomScorePath = mustBytes("/proc/self/oom_score_adj")
	shimName     = mustBytes(shimComm)
)

func mustBytes(text string) *byte {
	at, err := syscall.BytePtrFromString(text)
	if err != nil {
		panic(err)
	}
	return at
}

func (l *launch) addRlimits(settings *claim) {
	l.rlimits[0] = rlimit64{syscall.RLIMIT_NOFILE, early.Nofile.Cur, early.Nofile.Max}
	l.rlimitN = 1
	for _, limit := range settings.rlimits {
		if limit.resource == syscall.RLIMIT_NOFILE {
			l.rlimits[0] = limit
			continue
		}
		l.rlimits[l.rlimitN] = limit
		l.rlimitN++
	}
}

// start launches e and returns once the fork is done; what follows is supervise's.
func (g *guest) start(e *Exec, r *execRequest, settings *claim) {
	e.startedAt = time.Now() // before the fork: a short command is over before anybody here wakes up
	limit := int64(defaultOutputLimit)
	if r.OutputLimit != nil {
		limit = *r.OutputLimit
	}
	e.output.open(limit, &g.execs.kept)
	l, reason, detail := g.prepare(r, settings)
	if l == nil {
		g.finish(e, result{outcome: outcomeStartFailed, reason: reason, detail: detail})
		return
	}
	e.kills, e.crowd = g.limits.kills(), g.limits.crowd()
	pipes, err := g.openPipes(e, r, l)
	if err != nil {
		g.finish(e, g.notForked("pipes", errnoOf(err), e.crowd))
		return
	}
	e.process, err = g.processes.start(l)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs(e)
		g.finish(e, g.notForked("fork", errnoOf(err), e.crowd))
		return
	}
	go g.supervise(e, r, pipes)
}

const (
	defaultOutputLimit = 1 << 20
	// quietStart is how long a command runs before its pipes are watched: most are over by then and
	// are read in one go.
	quietStart = 2 * time.Millisecond
)

// supervise sees one command to its end.
func (g *guest) supervise(e *Exec, r *execRequest, pipes *execPipes) {
	<-e.process.started
	if e.process.failedAt != stageNone || e.process.lost {
		pipes.closeOurs(e)
		g.finish(e, g.startFailure(e.process, r, e.crowd))
		return
	}
	g.settings().begun(r.Cwd, r.User)
	raiseOOMScore(e.process.pid)
	close(e.launched)
	e.stdin.begin()
	var due *deadline
	if r.TimeoutS != nil {
		due = g.deadlines.after(*r.TimeoutS, func() { e.forceEnd(outcomeTimeout) })
	}
	e.waitEnd(pipes)
	g.deadlines.stop(due)
	e.mu.Lock()
	stop := e.stop
	e.mu.Unlock()
	if isClosed(e.process.ended) {
		stop = "" // it was quicker
	}
	if stop != "" {
		deadline := time.Now().Add(killGrace)
		if !g.processes.killTree(e.process, deadline) || !waitUntil(e.process.ended, deadline) {
			g.end(exitTreeUndead, "a command's processes did not die")
		}
	}
	duration := time.Since(e.startedAt)
	e.output.hurryUp()
	pipes.cut()
	e.stdin.end()
	e.terminal.close()
	g.finish(e, g.verdict(e, stop, duration))
}

// waitEnd waits for the main process or for a word to end it.
func (e *Exec) waitEnd(pipes *execPipes) {
	if e.terminal != nil {
		pipes.start() // somebody waits for its first word
	}
	quiet := time.NewTimer(quietStart)
	defer quiet.Stop()
	select {
	case <-e.process.ended:
		return
	case <-e.stopped:
		return
	case <-quiet.C:
	}
	if e.terminal == nil {
		pipes.start()
	}
	select {
	case <-e.process.ended:
	case <-e.stopped:
	}
}

func waitUntil(event chan struct{}, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
		return false
	}
}

// verdict says how the command ended. An exit status is only ever the kernel's word.
func (g *guest) verdict(e *Exec, stop string, duration time.Duration) result {
	end := e.process.end
	e.mu.Lock()
	sent := e.signals
	e.mu.Unlock()
	memory := g.limits.since(e.kills)
	res := result{duration: duration, survivors: e.process.alive, oomKills: memory.kills}
	switch {
	case stop != "":
		res.outcome, res.signal, res.survivors = stop, "KILL", false
	case !end.known:
		res.outcome, res.detail = outcomeLost, "its parent was killed before it could tell"
	case end.signal == 0:
		res.outcome, res.exitCode = outcomeExited, end.code
	case sent&(1<<uint(end.signal)) != 0:
		res.outcome, res.signal = outcomeKilled, signalName(end.signal)
	case end.signal == syscall.SIGKILL && memory.ranOut:
		res.outOfMemory(memory)
	default:
		res.outcome, res.signal = outcomeSignaled, signalName(end.signal)
	}
	if e.judge != nil {
		e.judge(&res)
	}
	return res
}

// finish completes the record. It is called once.
func (g *guest) finish(e *Exec, res result) {
	e.output.finish()
	e.mu.Lock()
	e.ended = true
	e.result = res
	e.mu.Unlock()
	select {
	case <-e.launched:
	default:
		close(e.launched)
	}
	g.execs.ended(e)
	close(e.done)
}
