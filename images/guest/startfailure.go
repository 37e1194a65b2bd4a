package main

import (
	"path"
	"syscall"
)

// startFailure is the record of a command that was never run. crowd: of before it was tried.
func (g *guest) startFailure(p *process, r *execRequest, crowd int64) result {
	if p.lost {
		// Nobody outside a sandbox kills a shim. One that had no command yet died in its command's place.
		if p.stillborn {
			return result{outcome: outcomeSignaled, signal: "KILL", detail: "a process inside killed it at its start"}
		}
		return result{outcome: outcomeLost, detail: "its parent was killed before it could tell"}
	}
	if p.failedAt == stageFork || p.failedAt == stageDescriptors {
		return g.notForked("fork", p.errno, crowd)
	}
	reason, settings := reasonOf(p.failedAt, p.errno), g.settings()
	subject := subjectOf(p.failedAt, r.Argv[0], settings.absolute(r.Cwd), r.User)
	return result{outcome: outcomeStartFailed, reason: reason, detail: subject + ": " + p.errno.Error(),
		fromInside: p.failedAt == stageWorkdir && settings.spoiled(p.errno, r.User)}
}

// begun notes where a command has begun, as the call asked for it.
func (c *claim) begun(cwd, user string) {
	if user == "" && !path.IsAbs(cwd) {
		c.entered.Store(true)
	}
}

// spoiled says whether only something inside can have made the workdir one that cannot be entered. It was
// there at the claim. Who may enter it is another matter: another user than the lease's, or one that has
// never been seen in it, may never have been able to.
func (c *claim) spoiled(errno syscall.Errno, user string) bool {
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
		return true
	case syscall.EACCES:
		return user == "" && c.entered.Load()
	}
	return false
}

// subjectOf names what was in the way.
func subjectOf(at stage, program, cwd, user string) string {
	subject := program
	switch at {
	case stageChdir, stageWorkdir:
		subject = cwd
	case stageUser, stageCapabilities:
		subject = "user " + user
	case stageTerminal:
		subject = "terminal"
	}
	if len(subject) > 256 {
		subject = subject[:256] + "…"
	}
	return subject
}

func reasonOf(at stage, errno syscall.Errno) string {
	switch {
	case errno == syscall.EAGAIN:
		return "pids"
	case errno == syscall.ENOMEM || errno == syscall.EMFILE || errno == syscall.ENFILE:
		return "no_memory"
	case at == stageChdir || at == stageWorkdir:
		return "bad_cwd"
	case at == stageUser || at == stageCapabilities:
		return "bad_user"
	case errno == syscall.E2BIG:
		return "too_long"
	case errno == syscall.ENOENT || errno == syscall.ENOTDIR || errno == syscall.ENAMETOOLONG || errno == syscall.ELOOP:
		return "not_found"
	case at == stageExec:
		return "not_executable"
	}
	return "no_memory"
}

func errnoOf(err error) syscall.Errno {
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	return syscall.EIO
}

// notForked is the record of a command whose process could not be made.
func (g *guest) notForked(subject string, errno syscall.Errno, crowd int64) result {
	res := result{outcome: outcomeStartFailed, reason: reasonOf(stageFork, errno), detail: subject + ": " + errno.Error()}
	if g.limits.forkFailedForHost(errno, crowd) {
		res.hostShort = true
		res.detail += ": the machine is short, not the sandbox"
	}
	return res
}
