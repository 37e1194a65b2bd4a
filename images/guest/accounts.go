package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// account is who a command or file call acts as.
type account struct {
	name     string
	uid, gid int
	groups   []uint32
	home     string
	switched bool // not the guest's own user: ids must be changed
}

const (
	passwdPath     = "/etc/passwd"
	groupPath      = "/etc/group"
	largestAccount = 4 << 20 // bytes of a passwd or group file that are read
)

type passwdLine struct {
	name     string
	uid, gid int
	home     string
}

// parsePasswd calls each with every well-formed line, until it returns false.
func parsePasswd(data []byte, each func(passwdLine) bool) {
	eachLine(data, 7, func(f []string) bool {
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 != nil || err2 != nil {
			return true
		}
		return each(passwdLine{f[0], uid, gid, f[5]})
	})
}

type groupLine struct {
	name    string
	gid     int
	members []string
}

// parseGroup calls each with every well-formed line, until it returns false.
func parseGroup(data []byte, each func(groupLine) bool) {
	eachLine(data, 4, func(f []string) bool {
		gid, err := parseID(f[2])
		if err != nil {
			return true
		}
		return each(groupLine{f[0], gid, strings.Split(f[3], ",")})
	})
}

func eachLine(data []byte, fields int, each func([]string) bool) {
	for len(data) > 0 {
		line := data
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			line, data = data[:end], data[end+1:]
		} else {
			data = nil
		}
		f := strings.Split(string(line), ":")
		if len(f) >= fields && f[0] != "" && f[0][0] != '#' && !each(f) {
			return
		}
	}
}

func parseID(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err == nil && id == 1<<32-1 {
		err = strconv.ErrRange // -1 means "leave as it is" to the kernel
	}
	return int(id), err
}

// readBounded reads the beginning of a regular file; nil where there is none. It never waits: whoever
// runs in the sandbox may have put a FIFO in its place.
func readBounded(path string, limit int64) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data := make([]byte, 0, 4096)
	for int64(len(data)) < limit {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err != nil {
			break
		}
	}
	return data
}

// findAccount resolves "", "name", "uid", "name:group" or "uid:gid" by the sandbox's own files.
// A number without an entry is taken as it is, with group 0 and home /.
func findAccount(user string) (account, *problem) {
	return resolveAccount(user, readBounded(passwdPath, largestAccount), readBounded(groupPath, largestAccount))
}

func resolveAccount(user string, passwd, group []byte) (account, *problem) {
	own := user == ""
	name, groupName, hasGroup := strings.Cut(user, ":")
	if own {
		name = strconv.Itoa(os.Geteuid())
	}
	a := account{home: "/"}
	uid, notNumber := parseID(name)
	found := false
	parsePasswd(passwd, func(line passwdLine) bool {
		if line.name == name || (notNumber == nil && line.uid == uid) {
			a.name, a.uid, a.gid, a.home, found = line.name, line.uid, line.gid, line.home, true
			return line.name != name // a name goes before a number
		}
		return true
	})
	if !found {
		if notNumber != nil {
			return a, fail("bad_request", "there is no user %q", name).with("reason", "bad_user")
		}
		a.uid, a.name = uid, name
	}
	if own {
		a.gid = os.Getegid()
		return a, nil
	}
	if hasGroup {
		gid, ok := findGroup(groupName, group)
		if !ok {
			return a, fail("bad_request", "there is no group %q", groupName).with("reason", "bad_user")
		}
		a.gid = gid
	}
	a.groups = groupsOf(a, group)
	a.switched = a.uid != os.Geteuid() || a.gid != os.Getegid()
	return a, nil
}

func findGroup(name string, data []byte) (int, bool) {
	gid, notNumber := parseID(name)
	found := notNumber == nil
	parseGroup(data, func(line groupLine) bool {
		if line.name == name {
			gid, found = line.gid, true
			return false
		}
		return true
	})
	return gid, found
}

func groupsOf(a account, data []byte) []uint32 {
	groups := []uint32{uint32(a.gid)}
	parseGroup(data, func(line groupLine) bool {
		for _, member := range line.members {
			if member == a.name && line.gid != a.gid {
				groups = append(groups, uint32(line.gid))
			}
		}
		return len(groups) < 1024
	})
	return groups
}

// nameOfID finds the name of a uid or gid in a passwd or group file; the number if there is none.
func nameOfID(id uint32, data []byte) string {
	name := strconv.FormatUint(uint64(id), 10)
	eachLine(data, 3, func(f []string) bool {
		if f[2] == name {
			name = f[0]
			return false
		}
		return true
	})
	return name
}
