package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzPasswdAndGroup(f *testing.F) {
	f.Add("root", "root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000::/home/u:\n", "root:x:0:\nu:x:1000:\ng:x:5:u,root\n")
	f.Add("1000:g", "u:x:1000:1000::/home/u:\n:::::::\n", "g:x:5:u\n")
	f.Add("4294967295", "u:x:-1:99999999999::/:\n", "")
	f.Add("u:", "#u:x:1:1:::\nu:x:1:1:::", ":::")
	f.Fuzz(func(t *testing.T, user, passwd, group string) {
		a, p := resolveAccount(user, []byte(passwd), []byte(group))
		if p == nil && (a.uid < 0 || a.gid < 0 || a.uid >= math.MaxUint32 || a.gid >= math.MaxUint32 || len(a.groups) > 2048) {
			t.Fatalf("%+v", a)
		}
		nameOfID(uint32(a.uid), []byte(passwd))
	})
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, frameStdin, []byte("hi")), frameJSON, []byte(`{"signal":"INT"}`)))
	f.Add([]byte{0, 0xFF, 0xFF, 0xFF, 0xFF})
	f.Add([]byte{3, 0, 0, 0, 9, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		from := bytes.NewReader(data)
		var again []byte
		for {
			kind, payload, err := readFrame(from, nil)
			if err != nil {
				break
			}
			again = appendFrame(again, kind, payload)
		}
		if !bytes.HasPrefix(data, again) {
			t.Fatal("frames do not go round")
		}
	})
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("12 (a) b) S 1 12 12 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 12345 0"))
	f.Add([]byte("12 (sh"))
	f.Add([]byte(") R"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		parseStat(data)
		ignoredSignals(data)
	})
}

func FuzzCgroupFiles(f *testing.F) {
	f.Add([]byte("low 0\noom_kill 7\n"))
	f.Add([]byte("max\n"))
	f.Add([]byte("18446744073709551615"))
	f.Add([]byte("0.52 0.58 0.59 1/389 123\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, n := range []*int64{parseNumber(data), parseKey(data, "oom_kill"), limitOrNull(parseNumber(data))} {
			if n != nil && *n < 0 {
				t.Fatalf("%d", *n)
			}
		}
		if load := parseLoad(data); load != nil && !(*load >= 0) {
			t.Fatalf("%g", *load)
		}
	})
}

func FuzzQuery(f *testing.F) {
	f.Add("path=%2Fa&offset=3&mode=0755&recursive=1&wait_s=2.5")
	f.Add("path_b64=L2E%3D&offset=-1&mode=9&recursive=2&wait_s=NaN")
	f.Add("a=%zz;b")
	f.Fuzz(func(t *testing.T, raw string) {
		q := queryOf(&http.Request{URL: &url.URL{RawQuery: raw}})
		path, offset, mode, wait := q.path("path"), q.number("offset", 0), q.mode("mode"), q.seconds("wait_s")
		q.flag("recursive", false)
		if q.failed == nil && (path == "" || hasNUL(path) || offset < 0 || !(wait >= 0) || (mode != nil && *mode > 0o7777)) {
			t.Fatalf("%q %d %v %g", path, offset, mode, wait)
		}
		nanoseconds(wait)
	})
}

func FuzzBodies(f *testing.F) {
	f.Add(`{"exec_id":"a","fingerprint":"f","argv":["true"],"env":{"A":"b"},"timeout_s":1.5,"stdin_b64":"aGk=","tty":null}`)
	f.Add(`{"lease_id":"l","files":[{"path":"a","data_b64":"","mode":420}],"life_s":1e308}`)
	f.Add(`{"exec_id":"a","argv":null}{}`)
	f.Fuzz(func(t *testing.T, body string) {
		var command execRequest
		if decodeJSON(strings.NewReader(body), &command) == nil && command.check() == nil {
			if len(command.Argv) == 0 || !validID(command.ExecID) {
				t.Fatalf("%+v", command)
			}
			l, _, _ := newLaunch(command.Argv, buildEnv(account{}, "/", layer{}, command.Env), "/", account{}, &unclaimed)
			if l == nil {
				t.Fatal("a checked command cannot be launched")
			}
		}
		var order claimRequest
		if decodeJSON(strings.NewReader(body), &order) == nil {
			_ = order.check()
		}
		_, _ = parseSignal(body)
	})
}

// FuzzTar unpacks whatever comes and checks that nothing beside the target changed.
func FuzzTar(f *testing.F) {
	f.Add(tarOf(f, member{name: "a/b", kind: tar.TypeReg, data: "x"}, member{name: "l", link: "a", kind: tar.TypeSymlink}, member{name: "l/c", kind: tar.TypeReg}))
	f.Add(tarOf(f, member{name: "l", link: "..", kind: tar.TypeSymlink}, member{name: "l/c", kind: tar.TypeReg}))
	f.Add(tarOf(f, member{name: "../x", kind: tar.TypeReg, data: "x"}))
	f.Add(tarOf(f, member{name: "a", link: "b", kind: tar.TypeSymlink}, member{name: "b", link: "a", kind: tar.TypeSymlink}, member{name: "a/x", kind: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if len(data) > 1<<20 {
			return
		}
		_, _ = unpack(fileCall{path: dir + "/in/deep"}, io.LimitReader(bytes.NewReader(data), 1<<20))
		for _, level := range []string{dir, dir + "/in"} {
			entries, err := os.ReadDir(level)
			if err != nil || len(entries) != 1 || (entries[0].Name() != "in" && entries[0].Name() != "deep") {
				t.Fatalf("%s: %v %v", filepath.Base(level), entries, err)
			}
		}
	})
}

func FuzzCharacterBorders(f *testing.F) {
	f.Add([]byte("a€b"), 2)
	f.Add([]byte("\xf0\x9f\x8e\x88\xff\xe2"), 3)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		if at < 0 || at > len(text) {
			return
		}
		var o output
		o.open(1<<20, nil)
		o.append(stdout, text[:at])
		o.append(stdout, text[at:])
		o.finish()
		r := o.attachAfter(0)
		frames, _ := o.take(r, nil)
		from := bytes.NewReader(frames)
		var joined []byte
		for {
			_, payload, err := readFrame(from, nil)
			if err != nil {
				break
			}
			if utf8.Valid(text) && !utf8.Valid(payload[pieceHead:]) {
				t.Fatalf("cut inside a character: %q", payload[pieceHead:])
			}
			joined = append(joined, payload[pieceHead:]...)
		}
		if !bytes.Equal(joined, text) {
			t.Fatalf("%q became %q", text, joined)
		}
	})
}

func FuzzShellText(f *testing.F) {
	f.Add("echo 'a' \"b\" $(c) `d`\n")
	f.Fuzz(func(t *testing.T, text string) {
		quoted := quote(text)
		if strings.ReplaceAll(quoted[1:len(quoted)-1], `'\''`, "'") != text {
			t.Fatalf("%q", quoted)
		}
		if _, err := json.Marshal(text); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzReadSend(f *testing.F) {
	f.Add([]byte{channelShell, 1, 'a', 0, 0, 0, 1, 'x', 0, 0, 0, 0})
	f.Add([]byte{channelIOPub, 1, 'a', 0, 0, 0, 1, 'x'})
	f.Add([]byte{channelShell, 200})
	f.Add([]byte{channelShell, 1, 'a', 0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, payload []byte) {
		channel, id, parts, ok := readSend(payload)
		if !ok {
			return
		}
		if channel == channelIOPub || channel < channelShell || channel > channelControl || !validID(id) || len(parts) > mostZmtpParts {
			t.Fatalf("%d %q %d", channel, id, len(parts))
		}
		again := append([]byte{byte(channel), byte(len(id))}, id...)
		for _, part := range parts {
			again = binary.BigEndian.AppendUint32(again, uint32(len(part)))
			again = append(again, part...)
		}
		if !bytes.Equal(again, payload) {
			t.Fatal("messages do not go round")
		}
	})
}

func FuzzZmtpReceive(f *testing.F) {
	f.Add([]byte{0, 1, 'a'})
	f.Add([]byte{zmtpMore, 1, 'a', 0, 0})
	f.Add([]byte{zmtpLong, 0, 0, 0, 0, 0, 0, 0, 1, 'a'})
	f.Add([]byte{zmtpLong, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 'a'})
	f.Add([]byte{zmtpCommand, 2, 'a', 'b', 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		z := &zmtpConn{from: bufio.NewReader(bytes.NewReader(data))}
		const most = 64
		for {
			parts, err := z.receive(most)
			held := 0
			for _, part := range parts {
				held += len(part)
			}
			if held > most || len(parts) > mostZmtpParts {
				t.Fatalf("%d bytes in %d parts", held, len(parts))
			}
			if err != nil && err != errTooLarge {
				return
			}
			readIDs(parts)
			readState(parts)
			isIntricate(parts)
		}
	})
}
