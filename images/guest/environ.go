package main

import (
	"os"
	"sort"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// buildEnv lays a call's variables over the claim's over the base, and sorts them by name.
func buildEnv(a account, cwd string, layers ...map[string]string) []string {
	merged := map[string]string{
		"PATH":    ownOr("PATH", defaultPath),
		"HOME":    a.home,
		"USER":    a.name,
		"LOGNAME": a.name,
		"LANG":    ownOr("LANG", "C.UTF-8"),
		"PWD":     cwd,
	}
	for _, layer := range layers {
		for name, value := range layer {
			merged[name] = value
		}
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
