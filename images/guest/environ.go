package main

import (
	"maps"
	"os"
	"sort"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// keptPrefix stands before what an image says to programs of its own, and would say to us.
const keptPrefix = "SANDBOX_GUEST_KEPT_"

// layer is variables by name.
type layer = map[string]string

// notOfCommands are variables that tell of the guest's own process, and would be wrong of any other:
// whose it is, where it was started, whether a terminal is there, and whom a service manager waits for.
var notOfCommands = []string{
	"HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "_", "TERM",
	"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
}

// isOfCluster: what a cluster's node adds to every container, where its API server is, is nothing to a
// sandbox.
func isOfCluster(name string) bool {
	rest, ok := strings.CutPrefix(name, "KUBERNETES_")
	return ok && (rest == "PORT" || strings.HasPrefix(rest, "PORT_") || strings.HasPrefix(rest, "SERVICE_"))
}

// baseEnv is what lies below every claim: a path and a language, and the rest of the guest's own
// environment if it is inherited, for an engine has put the image's variables there.
func baseEnv(inherit bool) layer {
	base := layer{}
	if inherit {
		for _, entry := range os.Environ() {
			if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
				base[name] = value
			}
		}
		restoreKept(base)
		for _, name := range notOfCommands {
			delete(base, name)
		}
		for name := range base {
			if isOfCluster(name) {
				delete(base, name)
			}
		}
		if host, err := os.Hostname(); err != nil || base["HOSTNAME"] != host {
			delete(base, "HOSTNAME")
		}
	}
	base["PATH"] = ownOr("PATH", defaultPath)
	base["LANG"] = ownOr("LANG", "C.UTF-8")
	return base
}

// restoreKept gives variables back their names that came under another, because our own runtime would
// have taken them for itself.
func restoreKept(base layer) {
	for name, value := range maps.Clone(base) {
		if own, ok := strings.CutPrefix(name, keptPrefix); ok {
			base[own] = value
			delete(base, name)
		}
	}
}

// buildEnv lays a call's variables over the claim's over the base, and sorts them by name. What is
// known of the user goes over the base and below the claim.
func buildEnv(a account, cwd string, base layer, layers ...layer) []string {
	merged := maps.Clone(base)
	who := layer{"HOME": a.home, "USER": a.name, "LOGNAME": a.name, "PWD": cwd}
	for _, over := range append([]layer{who}, layers...) {
		maps.Copy(merged, over)
	}
	env := make([]string, 0, len(merged))
	for name, value := range merged {
		env = append(env, name+"="+value)
	}
	sort.Strings(env)
	return env
}

func ownOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func lookup(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func checkEnv(env map[string]string) *problem {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fail("bad_request", "env: %q cannot be the name of a variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return fail("bad_request", "env: the value of %q has a zero byte", name)
		}
	}
	return nil
}

// candidates are the paths at which a program may be, as execvp tries them.
func candidates(program, path string) []string {
	if strings.Contains(program, "/") {
		return []string{program}
	}
	if program == "" {
		return []string{""}
	}
	if path == "" {
		path = defaultPath
	}
	var found []string
	for _, dir := range strings.Split(path, ":") {
		if dir == "" {
			dir = "."
		}
		found = append(found, dir+"/"+program)
	}
	return found
}
