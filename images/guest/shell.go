package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	mostShells = 64

	shellIdle  = "idle"
	shellBusy  = "busy"
	shellEnded = "ended"
)

// shell is one bash (else sh) that remembers directory, variables and functions.
//
// It reads its program from a pipe: for each run one statement that evaluates the text and then
// writes the status to descriptor 9. Descriptor 8 is its stderr, so that the statement itself can keep
// silent under `set -x`. Neither is open in what the text starts.
type shell struct {
	id      string
	kind    string
	guest   *guest
	process *process
	program *os.File
	pumps   [2]*pump
	status  chan int      // exit status of a run
	gone    chan struct{} // closed once the shell ended and was cleared away
	crowd   int64         // as counted before it began

	mu   sync.Mutex // guards what follows
	run  *shellRun
	last int // status of the last run
	dead bool
	// byCaller: a caller ended it, or meant to. kills are those counted before its last run.
	byCaller bool
	kills    kills
	shortOf  want // what became of the memory until its end
}

type shellTable struct {
	guest *guest
	only  string // use no other than this one; "" for the best there is
	mu    sync.Mutex
	byID  map[string]*shell
	order []*shell
}

func newShellTable(g *guest, only string) *shellTable {
	return &shellTable{guest: g, only: only, byID: map[string]*shell{}}
}

// kind is the shell that this sandbox has; "" for none.
func (t *shellTable) kind() string {
	if t.only != "" {
		return t.only
	}
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if syscall.Access(path, 1) == nil {
			return "/bin/bash"
		}
	}
	if syscall.Access("/bin/sh", 1) == nil {
		return "/bin/sh"
	}
	return ""
}

// shellRequest is the body of POST /v1/shells.
type shellRequest struct {
	ShellID string            `json:"shell_id"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	User    string            `json:"user"`
}

type shellView struct {
	ShellID string `json:"shell_id"`
	State   string `json:"state"`
	Shell   string `json:"shell"`
}

func (s *shell) view() shellView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := shellView{ShellID: s.id, State: shellIdle, Shell: s.kind}
	switch {
	case s.dead:
		v.State = shellEnded
	case s.run != nil:
		v.State = shellBusy
	}
	return v
}

// open starts a shell, or finds the one that has the id.
func (t *shellTable) open(r *shellRequest) (*shell, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byID[r.ShellID]; s != nil {
		return s, nil
	}
	t.forgetEnded()
	if len(t.order) >= mostShells {
		return nil, fail("busy", "%d shells are open", len(t.order))
	}
	s, err := t.guest.startShell(r, t.kind())
	if err != nil {
		return nil, err
	}
	t.byID[s.id] = s
	t.order = append(t.order, s)
	return s, nil
}

// forgetEnded makes room: of shells that ended the oldest go first. The lock is held.
func (t *shellTable) forgetEnded() {
	for i := 0; i < len(t.order) && len(t.order) >= mostShells; {
		if s := t.order[i]; isClosed(s.gone) {
			delete(t.byID, s.id)
			t.order = append(t.order[:i], t.order[i+1:]...)
			continue
		}
		i++
	}
}

func (t *shellTable) find(id string) (*shell, *problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byID[id]; s != nil {
		return s, nil
	}
	return nil, fail("not_found", "there is no shell %q", id)
}

func (t *shellTable) list() []*shell {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*shell, len(t.order))
	for i, s := range t.order {
		list[len(list)-1-i] = s
	}
	return list
}

// closeAll ends all shells, and counts those that were idle.
func (t *shellTable) closeAll() (idle int) {
	for _, s := range t.list() {
		if s.view().State == shellIdle {
			idle++
		}
		s.close()
	}
	return idle
}

func (t *shellTable) remove(s *shell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, s.id)
	for i, other := range t.order {
		if other == s {
			t.order = append(t.order[:i], t.order[i+1:]...)
			return
		}
	}
}

// startShell starts it and waits until it executes.
func (g *guest) startShell(r *shellRequest, kind string) (*shell, error) {
	settings := g.settings()
	argv, problem := shellArgv(kind)
	if problem != nil {
		return nil, problem.blame(settings.shell != "")
	}
	who, problem := settings.account(r.User)
	if problem != nil {
		return nil, problem
	}
	cwd := settings.absolute(r.Cwd)
	l, reason, detail := newLaunch(argv, buildEnv(who, cwd, g.base, settings.env, r.Env), r.Cwd, who, settings)
	if l == nil {
		return nil, fail("bad_request", "%s", detail).with("reason", reason)
	}
	s := &shell{id: r.ShellID, kind: kind, guest: g, status: make(chan int, 1), gone: make(chan struct{}),
		kills: g.limits.kills(), crowd: g.limits.crowd()}
	if err := s.launch(l); err != nil {
		return nil, err
	}
	<-s.process.started
	if s.process.lost || s.process.failedAt != stageNone {
		s.program.Close()
		s.closePumps()
		return nil, s.failure(argv[0], r)
	}
	settings.begun(r.Cwd, r.User)
	raiseOOMScore(s.process.pid)
	for _, p := range s.pumps {
		p.start()
	}
	go s.watch()
	return s, nil
}

// failure is why it was never run, and whose doing that is, as for a command.
func (s *shell) failure(program string, r *shellRequest) *problem {
	p := s.process
	if p.lost {
		return fail("conflict", "what was to tell of the shell was killed at its start").blame(p.stillborn)
	}
	settings, reason := s.guest.settings(), reasonOf(p.failedAt, p.errno)
	subject := subjectOf(p.failedAt, program, settings.absolute(r.Cwd), r.User)
	detail := "the shell cannot be started: " + subject + ": " + p.errno.Error()
	switch reason {
	case "pids", "no_memory":
		return s.short(p.errno, detail).with("reason", reason)
	case "bad_cwd":
		return fail("bad_request", "%s", detail).with("reason", reason).
			blame(p.failedAt == stageWorkdir && settings.spoiled(p.errno, r.User))
	case "bad_user":
		return fail("bad_request", "%s", detail).with("reason", reason)
	}
	return fail("bad_request", "%s", detail).with("reason", reason).blame(true)
}

// short is what a call is refused with that found no process or memory, here or on the machine.
func (s *shell) short(errno syscall.Errno, detail string) *problem {
	p := fail("busy", "%s", detail)
	if s.guest.limits.forkFailedForHost(errno, s.crowd) {
		return p.with("host_short", true)
	}
	return p.blame(true)
}

func shellArgv(kind string) ([]string, *problem) {
	switch kind {
	case "/bin/bash":
		return []string{"bash", "--noprofile", "--norc", "-s"}, nil
	case "/bin/sh":
		return []string{"/bin/sh", "-s"}, nil
	}
	return nil, fail("conflict", "the sandbox has no shell")
}

func (s *shell) launch(l *launch) (err error) {
	var theirs []int
	defer func() {
		for _, fd := range theirs {
			syscall.Close(fd)
		}
	}()
	var ours [4]int // program, stdout, stderr, status
	for i := range ours {
		side := 0
		if i == 0 {
			side = 1
		}
		fds, err := newPipe(side)
		if err != nil {
			for _, fd := range ours[:i] {
				syscall.Close(fd)
			}
			return s.short(errnoOf(err), "pipes: "+err.Error())
		}
		ours[i] = fds[side]
		theirs = append(theirs, fds[1-side])
	}
	l.stdio = [3]uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])}
	l.extra = uintptr(theirs[3])
	s.program = os.NewFile(uintptr(ours[0]), "program")
	s.pumps = [2]*pump{newPump(ours[1], nil), newPump(ours[2], nil)}
	statusFile := os.NewFile(uintptr(ours[3]), "status")
	s.process, err = s.guest.processes.start(l)
	if err != nil {
		statusFile.Close()
		s.program.Close()
		s.closePumps()
		return s.short(errnoOf(err), "fork: "+err.Error())
	}
	go s.readStatus(statusFile)
	return nil
}

func (s *shell) closePumps() {
	for _, p := range s.pumps {
		syscall.Close(p.fd)
	}
}

// readStatus reads the status line of each run. Whatever is no such line is ignored.
func (s *shell) readStatus(from *os.File) {
	defer from.Close()
	buffer := make([]byte, 256)
	var line []byte
	for {
		n, err := from.Read(buffer)
		for _, b := range buffer[:n] {
			if b != '\n' {
				if len(line) < 16 {
					line = append(line, b)
				}
				continue
			}
			if status, err := strconv.ParseUint(string(line), 10, 8); err == nil {
				select {
				case s.status <- int(status):
				default:
				}
			}
			line = line[:0]
		}
		if err != nil {
			return
		}
	}
}

// watch sees the shell to its end.
func (s *shell) watch() {
	<-s.process.ended
	s.mu.Lock()
	s.dead, s.shortOf = true, s.guest.limits.since(s.kills)
	s.mu.Unlock()
	s.program.Close()
	close(s.gone)
}

// isOver is what a run is refused with once the shell has ended. The lock is held.
func (s *shell) isOver() *problem {
	end := s.process.end
	byCaller := s.byCaller || (s.run != nil && s.run.exec.endedByCaller())
	forHost := end.signal == syscall.SIGKILL && s.shortOf.hostShort
	return fail("conflict", "the shell has ended").with("shell_ended", true).
		blame(!byCaller && end.known && !forHost)
}

// close ends the shell and all it started.
func (s *shell) close() {
	s.mu.Lock()
	s.byCaller = true
	run := s.run
	s.mu.Unlock()
	if run != nil {
		run.exec.forceEnd(outcomeKilled)
	}
	s.kill()
	<-s.gone
	if run != nil {
		<-run.exec.done
	}
}

// kill kills the shell's whole tree; one that does not die ends the sandbox.
func (s *shell) kill() {
	deadline := killDeadline()
	if !s.guest.processes.killTree(s.process, deadline) || !waitUntil(s.process.ended, deadline) {
		s.guest.end(exitTreeUndead, "a shell's processes did not die")
	}
}

// statement is what the shell reads for one run. `command` keeps a syntax error in the text from
// ending a POSIX shell; the group's redirection hides what `set -x` shows of the statement itself.
func statement(text string, last int) string {
	before := ""
	if last != 0 {
		before = "(exit " + strconv.Itoa(last) + ") || " // the text sees the last status as $?
	}
	return "\n{ " + before + `\command eval ` + quote(text) + " </dev/null 2>&8 8>&- 9>&-; " +
		`\command printf '%s\n' "$?" >&9; } 2>/dev/null` + "\n"
}

func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// stepPatience is how long each step that shall bring a shell back may take.
const stepPatience = time.Second
