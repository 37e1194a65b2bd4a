package main

import "time"

// execView is an Exec on the wire.
type execView struct {
	ExecID        string  `json:"exec_id"`
	State         string  `json:"state"`
	Outcome       *string `json:"outcome"`
	ExitCode      *int    `json:"exit_code"`
	Signal        *string `json:"signal"`
	Reason        *string `json:"reason"`
	Detail        *string `json:"detail"`
	OOMKills      int64   `json:"oom_kills"`
	HostShort     bool    `json:"host_short,omitempty"`
	FromInside    bool    `json:"from_inside,omitempty"`
	Stdout        any     `json:"stdout"`
	Stderr        any     `json:"stderr"`
	OutputDropped bool    `json:"output_dropped"`
	DurationS     float64 `json:"duration_s"`
	StartedAt     float64 `json:"started_at"`
	Survivors     bool    `json:"survivors"`
	ShellEnded    bool    `json:"shell_ended,omitempty"`
	Interrupted   bool    `json:"interrupted,omitempty"`
}

// view renders the record as it is now. startedAt is written before launched is closed, and views are
// only made after that.
func (e *Exec) view(withOutput bool) *execView {
	e.mu.Lock()
	ended, res := e.ended, e.result
	e.mu.Unlock()
	v := &execView{ExecID: e.id, State: "running", StartedAt: unixSeconds(e.startedAt)}
	if ended {
		v.State = "ended"
		v.Outcome = &res.outcome
		v.Signal, v.Reason, v.Detail = orNull(res.signal), orNull(res.reason), orNull(res.detail)
		v.OOMKills, v.HostShort, v.Survivors = res.oomKills, res.hostShort, res.survivors
		v.FromInside = res.fromInside
		v.ShellEnded, v.Interrupted = res.shellEnded, res.interrupted
		v.DurationS = res.duration.Seconds()
		if res.outcome == outcomeExited {
			v.ExitCode = &res.exitCode
		}
	} else {
		v.DurationS = time.Since(e.startedAt).Seconds()
	}
	if withOutput {
		v.Stdout, v.Stderr = e.output.kept(stdout), e.output.kept(stderr)
	} else {
		v.Stdout, v.Stderr = e.output.count(stdout), e.output.count(stderr)
	}
	v.OutputDropped = e.output.isDropped()
	return v
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

func (o *output) isDropped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
