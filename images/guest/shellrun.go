package main

import (
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// runRequest is the body of POST /v1/shells/{sid}/run.
type runRequest struct {
	ExecID      string   `json:"exec_id"`
	Fingerprint string   `json:"fingerprint"`
	Text        string   `json:"text"`
	TimeoutS    *float64 `json:"timeout_s"`
	OutputLimit *int64   `json:"output_limit_bytes"`
	Wait        bool     `json:"wait"`
}

// shellRun is one text that a shell runs.
type shellRun struct {
	shell  *shell
	exec   *Exec
	before map[int]uint64 // the shell's descendants when it began, with their start times
}

func (g *guest) postShell(w http.ResponseWriter, r *http.Request) error {
	var request shellRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if !validID(request.ShellID) {
		return fail("bad_request", "shell_id is not valid")
	}
	if hasNUL(request.Cwd) || hasNUL(request.User) {
		return fail("bad_request", "cwd or user has a zero byte")
	}
	if p := checkEnv(request.Env); p != nil {
		return p
	}
	s, err := g.shells.open(&request)
	if err != nil {
		return err
	}
	writeJSON(w, 200, s.view())
	return nil
}

func (g *guest) listShells(w http.ResponseWriter, _ *http.Request) error {
	views := []shellView{}
	for _, s := range g.shells.list() {
		views = append(views, s.view())
	}
	writeJSON(w, 200, map[string]any{"shells": views})
	return nil
}

func (g *guest) getShell(w http.ResponseWriter, r *http.Request) error {
	s, p := g.shells.find(r.PathValue("sid"))
	if p != nil {
		return p
	}
	writeJSON(w, 200, s.view())
	return nil
}

func (g *guest) deleteShell(w http.ResponseWriter, r *http.Request) error {
	s, p := g.shells.find(r.PathValue("sid"))
	if p != nil {
		return p
	}
	s.close()
	g.shells.remove(s)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *guest) postRun(w http.ResponseWriter, r *http.Request) error {
	var request runRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if p := checkRun(request.ExecID, request.TimeoutS, request.OutputLimit); p != nil {
		return p
	}
	if hasNUL(request.Text) {
		return fail("bad_request", "text has a zero byte")
	}
	s, p := g.shells.find(r.PathValue("sid"))
	if p != nil {
		return p
	}
	e, fresh, p := g.execs.claimRun(s, &request)
	if p != nil {
		return p
	}
	if fresh {
		go s.perform(e, &request)
	}
	return answerExec(w, r, e, request.Wait)
}

// claimRun enters a run under its id, unless the shell is busy or ended: then nothing is entered.
func (t *execTable) claimRun(s *shell, r *runRequest) (*Exec, bool, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, missing := t.find(r.ExecID); missing != nil {
		if s.dead {
			return nil, false, s.isOver()
		}
		if s.run != nil {
			return nil, false, fail("conflict", "the shell is busy").with("state", shellBusy)
		}
	}
	e, fresh, p := t.claimID(r.ExecID, r.Fingerprint, false)
	if fresh {
		limit := int64(defaultOutputLimit)
		if r.OutputLimit != nil {
			limit = *r.OutputLimit
		}
		e.output.open(limit, &t.kept)
		e.run = &shellRun{shell: s, exec: e}
		s.run = e.run
	}
	return e, fresh, p
}

// perform sees one run to its end.
func (s *shell) perform(e *Exec, r *runRequest) {
	g := s.guest
	run := e.run
	run.before = run.descendants()
	e.kills = g.limits.kills()
	s.mu.Lock()
	s.kills = e.kills
	s.mu.Unlock()
	for which, p := range s.pumps {
		p.into(e.outputSink(g, which))
	}
	e.startedAt = time.Now()
	close(e.launched)
	var due *deadline
	if r.TimeoutS != nil {
		due = g.deadlines.after(*r.TimeoutS, func() { e.forceEnd(outcomeTimeout) })
	}
	select {
	case <-s.status: // of a run that was given up
	default:
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		_, _ = s.program.WriteString(statement(r.Text, s.last))
	}()
	res := s.await(e)
	g.deadlines.stop(due)
	res.duration = time.Since(e.startedAt)
	memory := g.limits.since(e.kills)
	res.oomKills = memory.kills
	if memory.ranOut && res.outcome == outcomeSignaled && res.signal == "KILL" {
		res.outOfMemory(memory)
	}
	e.output.hurryUp()
	for _, p := range s.pumps {
		p.cut()
	}
	if res.shellEnded {
		<-s.gone
		<-fed
	} else {
		res.survivors = len(run.fresh()) > 0
	}
	byCaller := res.shellEnded && e.endedByCaller()
	s.mu.Lock()
	s.byCaller = s.byCaller || byCaller
	s.run = nil
	s.mu.Unlock()
	g.finish(e, res)
}

// await waits for the run's status, the shell's end, or a word to end the run.
func (s *shell) await(e *Exec) result {
	select {
	case status := <-s.status:
		s.last = status
		return result{outcome: outcomeExited, exitCode: status}
	case <-s.process.ended:
		return s.shellVerdict()
	case <-e.stopped:
	}
	e.mu.Lock()
	res := result{outcome: e.stop, signal: "KILL"}
	e.mu.Unlock()
	if s.bringBack(e.run) {
		res.interrupted = true
		return res
	}
	s.kill()
	res.shellEnded = true
	return res
}

// shellVerdict is the status of a shell that ended under a run; one that wrote the run's status just
// before it ended is told by that status.
func (s *shell) shellVerdict() result {
	end := s.process.end
	res := result{shellEnded: true}
	switch {
	case !end.known:
		res.outcome, res.detail = outcomeLost, "its parent was killed before it could tell"
	case end.signal != 0:
		res.outcome, res.signal = outcomeSignaled, signalName(end.signal)
	default:
		res.outcome, res.exitCode = outcomeExited, end.code
	}
	return res
}

// bringBack ends what the run has in the foreground, until the shell writes a status: it is
// interrupted, then killed but for what ignores interrupts, as background jobs do, then all killed.
func (s *shell) bringBack(run *shellRun) bool {
	foreground := func() (pids []int) {
		for _, pid := range run.fresh() {
			if !ignoresInterrupt(pid) {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	return s.cameBack(interrupt(run.fresh())) ||
		s.cameBack(killed(foreground)) ||
		s.cameBack(killed(run.fresh))
}

func interrupt(pids []int) (hit bool) {
	for _, pid := range pids {
		hit = syscall.Kill(pid, syscall.SIGINT) == nil || hit
	}
	return hit
}

func killed(members func() []int) (hit bool) {
	if len(members()) == 0 {
		return false
	}
	killAll(members, time.Now().Add(stepPatience))
	return true
}

// cameBack waits for the shell's status, if anything was hit.
func (s *shell) cameBack(hit bool) bool {
	if !hit || isClosed(s.process.ended) {
		return false
	}
	timer := time.NewTimer(stepPatience)
	defer timer.Stop()
	select {
	case s.last = <-s.status:
		return true
	case <-s.process.ended:
	case <-timer.C:
	}
	return false
}

// descendants are the processes that the shell started, directly or not, with their start times.
func (r *shellRun) descendants() map[int]uint64 {
	table := scanProcesses()
	shell := r.shell.process
	found := map[int]uint64{}
	for _, pid := range table.below(map[int]bool{shell.shimPID: true, shell.pid: true}) {
		found[pid] = table[pid].startAt
	}
	return found
}

// fresh are those that came since the run began.
func (r *shellRun) fresh() []int {
	var pids []int
	for pid, start := range r.descendants() {
		if was, known := r.before[pid]; !known || was != start {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signal sends a caller's signal to what the run has started, or to the shell if that is nothing.
func (r *shellRun) signal(sig syscall.Signal) bool {
	sent := false
	for _, pid := range r.fresh() {
		sent = syscall.Kill(pid, sig) == nil || sent
	}
	return sent || syscall.Kill(r.shell.process.pid, sig) == nil
}

// ignoresInterrupt reads whether a process ignores SIGINT.
func ignoresInterrupt(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && ignoredSignals(status)&(1<<(uint(syscall.SIGINT)-1)) != 0
}
