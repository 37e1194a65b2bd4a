package main

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// call is a route's work. An error it returns is written as a problem.
type call func(w http.ResponseWriter, r *http.Request) error

// routes is the whole protocol.
func (g *guest) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, do call) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			g.heard()
			if err := do(w, r); err != nil {
				writeProblem(w, err)
			}
		})
	}
	handle("GET /v1/hello", g.hello)
	handle("POST /v1/setup", g.postSetup)
	handle("POST /v1/ready", g.postReady)
	handle("POST /v1/claim", g.postClaim)
	handle("POST /v1/renew", g.postRenew)
	handle("POST /v1/end", g.postEnd)
	handle("POST /v1/kill", g.postKill)
	handle("GET /v1/readings", g.getReadings)
	handle("POST /v1/execs", g.postExec)
	handle("GET /v1/execs", g.listExecs)
	handle("GET /v1/execs/{id}", g.getExec)
	handle("GET /v1/execs/{id}/output", g.getOutput)
	handle("POST /v1/execs/{id}/stdin", g.postStdin)
	handle("POST /v1/execs/{id}/signal", g.postSignal)
	handle("POST /v1/execs/{id}/resize", g.postResize)
	handle("GET /v1/execs/{id}/attach", g.attach)
	handle("POST /v1/shells", g.postShell)
	handle("GET /v1/shells", g.listShells)
	handle("GET /v1/shells/{sid}", g.getShell)
	handle("DELETE /v1/shells/{sid}", g.deleteShell)
	handle("POST /v1/shells/{sid}/run", g.postRun)
	handle("GET /v1/files", g.getFile)
	handle("PUT /v1/files", g.putFile)
	handle("DELETE /v1/files", g.deleteFile)
	handle("GET /v1/files/stat", g.statFile)
	handle("GET /v1/files/list", g.listFiles)
	handle("POST /v1/files/mkdir", g.makeDirectory)
	handle("POST /v1/files/move", g.moveFile)
	handle("GET /v1/files/archive", g.getArchive)
	handle("PUT /v1/files/archive", g.putArchive)
	handle("GET /v1/ports/{port}", g.openPort)
	handle("PUT /v1/listeners", g.putListeners)
	handle("GET /v1/accept", g.accept)
	handle("PUT /v1/kernels/{kid}", g.putKernel)
	handle("GET /v1/kernels", g.listKernels)
	handle("GET /v1/kernels/{kid}", g.getKernel)
	handle("DELETE /v1/kernels/{kid}", g.deleteKernel)
	handle("POST /v1/kernels/{kid}/signal", g.signalKernel)
	handle("POST /v1/kernels/{kid}/take", g.takeKernel)
	handle("GET /v1/kernels/{kid}/attach", g.attachKernel)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return fail("not_found", "there is no %s %s", r.Method, r.URL.Path)
	})
	return mux
}

func (g *guest) hello(w http.ResponseWriter, _ *http.Request) error {
	running, idle := g.idle()
	leaseID := ""
	if c := g.currentClaim(); c != nil {
		leaseID = c.leaseID
	}
	writeJSON(w, 200, map[string]any{
		"protocol":      protocolNumber,
		"protocols":     append(slices.Clone(olderProtocols), protocolNumber),
		"version":       version,
		"boot_id":       g.bootID,
		"lease_id":      leaseID,
		"ready":         g.isReady(),
		"life_left_s":   g.lifeLeft(),
		"uptime_s":      float64(bootNow()-g.startedAt) / 1e9,
		"execs_running": running,
		"idle_s":        idle,
		"shell":         g.shells.kind(),
		"limits":        map[string]string{"readings": g.limits.kind},
	})
	return nil
}

// idle is how many commands run, and for how many seconds none has, nor was a kernel busy.
func (g *guest) idle() (running int, idleS float64) {
	running, since := g.execs.idle()
	if running > 0 {
		return running, 0
	}
	since = max(since, g.startedAt, g.kernels.idleSince())
	if c := g.currentClaim(); c != nil {
		since = max(since, c.at)
	}
	return 0, float64(bootNow()-since) / 1e9
}

func (g *guest) postClaim(w http.ResponseWriter, r *http.Request) error {
	var request claimRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if err := g.take(&request); err != nil {
		return err
	}
	writeJSON(w, 200, map[string]string{"boot_id": g.bootID})
	return nil
}

func (g *guest) postRenew(w http.ResponseWriter, r *http.Request) error {
	var request struct {
		LifeS *float64 `json:"life_s"`
	}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if request.LifeS != nil && !(*request.LifeS >= 0) {
		return fail("bad_request", "life_s is negative")
	}
	g.lifeMu.Lock()
	g.setLife(request.LifeS)
	g.lifeMu.Unlock()
	writeJSON(w, 200, struct{}{})
	return nil
}

// postEnd ends the sandbox with its first process. There is no answer but the end of the connection.
func (g *guest) postEnd(http.ResponseWriter, *http.Request) error {
	g.exitWith(0, "the daemon wants no more of it")
	return nil
}

func (g *guest) postKill(w http.ResponseWriter, _ *http.Request) error {
	killed := g.killAll()
	writeJSON(w, 200, map[string]int{"killed": killed})
	return nil
}

// killAll ends every command and shell, and every process that commands left behind. It counts the
// commands, and the shells that ran none.
func (g *guest) killAll() int {
	var waiting []*Exec
	for _, e := range g.execs.newestFirst() {
		if e.forceEnd(outcomeKilled) {
			waiting = append(waiting, e)
		}
	}
	for _, k := range g.kernels.all() {
		if k.exec.forceEnd(outcomeKilled) {
			waiting = append(waiting, k.exec)
		}
	}
	killed := len(waiting) + g.shells.closeAll()
	if !g.processes.killEverything() {
		g.end(exitTreeUndead, "a command's processes did not die")
	}
	for _, e := range waiting {
		<-e.done
	}
	return killed
}

func (g *guest) getReadings(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, 200, g.limits.read(g.settings().workdir))
	return nil
}

func (g *guest) postExec(w http.ResponseWriter, r *http.Request) error {
	var request execRequest
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	if p := request.check(); p != nil {
		return p
	}
	settings, err := g.settingsFor(request.Expected)
	if err != nil {
		return err
	}
	e, fresh, p := g.execs.claimID(request.ExecID, request.Fingerprint, request.Standing)
	if p != nil {
		return p
	}
	if fresh {
		g.start(e, &request, settings)
	}
	return answerExec(w, r, e, request.Wait)
}

// answerExec answers when the command ended, or without wait once it was launched. A caller that
// goes away changes nothing.
func answerExec(w http.ResponseWriter, r *http.Request, e *Exec, wait bool) error {
	until := e.launched
	status := 202
	if wait {
		until, status = e.done, 200
	}
	select {
	case <-until:
	case <-r.Context().Done():
		return nil
	}
	writeJSON(w, status, e.view(wait && queryOf(r).flag("output", true)))
	return nil
}

func (g *guest) listExecs(w http.ResponseWriter, _ *http.Request) error {
	views := []*execView{}
	for _, e := range g.execs.newestFirst() {
		if isClosed(e.launched) {
			views = append(views, e.view(false))
		}
	}
	writeJSON(w, 200, map[string]any{"execs": views})
	return nil
}

func isClosed(event chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}

func (g *guest) getExec(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	waitS, withOutput := q.seconds("wait_s"), q.flag("output", true)
	if q.failed != nil {
		return q.failed
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	waitFor(r.Context(), e.done, waitS)
	<-e.launched
	writeJSON(w, 200, e.view(withOutput))
	return nil
}

// waitFor waits until the event, the time is over or the caller went away.
func waitFor(ctx context.Context, event <-chan struct{}, seconds float64) {
	if seconds <= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(nanoseconds(seconds)))
	defer timer.Stop()
	select {
	case <-event:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (g *guest) getOutput(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	which := stdout
	switch q.text("stream") {
	case "stdout", "":
	case "stderr":
		which = stderr
	default:
		q.refuse("stream")
	}
	offset, limit, waitS := q.number("offset", 0), q.number("limit", 1<<20), q.seconds("wait_s")
	if q.failed != nil {
		return q.failed
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	data, atEnd, err := e.output.read(r.Context(), which, offset, min(limit, 16<<20), waitS)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("X-Next-Offset", strconv.FormatInt(offset+int64(len(data)), 10))
	h.Set("X-Ended", map[bool]string{false: "0", true: "1"}[atEnd])
	_, _ = w.Write(data)
	return nil
}

// read copies bytes that are contiguous from offset on. At the end it waits for more. atEnd: the
// command ended and nothing follows what is returned.
func (o *output) read(ctx context.Context, which int, offset, limit int64, waitS float64) (data []byte, atEnd bool, err error) {
	deadline := bootNow() + nanoseconds(waitS)
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		s := &o.streams[which]
		n, _ := s.available(offset)
		if offset > s.total || (n <= 0 && offset < s.total) {
			return nil, false, fail("range", "byte %d of %s is not kept", offset, streamNames[which]).
				with("kept", s.ranges()).with("bytes", s.total)
		}
		left := deadline - bootNow()
		if n > 0 || o.closed || left <= 0 || ctx.Err() != nil {
			data = make([]byte, min(n, limit))
			s.copyTo(data, offset)
			return data, o.closed && offset+int64(len(data)) == s.total, nil
		}
		changed := o.change()
		o.mu.Unlock()
		waitFor(ctx, changed, float64(left)/1e9)
		o.mu.Lock()
	}
}

func (g *guest) postStdin(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	offset, eof := q.number("offset", -1), q.flag("eof", false)
	if q.failed != nil {
		return q.failed
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	<-e.launched
	taken, err := e.stdin.feed(r.Body, offset, eof)
	if err != nil {
		return e.refused(err)
	}
	writeJSON(w, 200, map[string]int64{"offset": taken})
	return nil
}

func (g *guest) postSignal(w http.ResponseWriter, r *http.Request) error {
	var request struct {
		Signal string `json:"signal"`
	}
	if err := readJSON(w, r, &request); err != nil {
		return err
	}
	e, p := g.execs.find(r.PathValue("id"))
	if p != nil {
		return p
	}
	delivered, p := g.signal(e, request.Signal)
	if p != nil {
		return p
	}
	state := "running"
	if e.isEnded() {
		state = "ended"
	}
	writeJSON(w, 200, map[string]any{"delivered": delivered, "state": state})
	return nil
}
