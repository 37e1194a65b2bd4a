package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// rawClient is one kept connection that costs as little as it can: what is measured is the guest.
type rawClient struct {
	conn net.Conn
	from *bufio.Reader
}

func dialRaw(b *testing.B, g *testGuest) *rawClient {
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return &rawClient{conn, bufio.NewReader(conn)}
}

func (c *rawClient) runTrue(b *testing.B, id int64) {
	body := fmt.Sprintf(`{"exec_id":"b%d","fingerprint":"f","argv":["/bin/true"],"wait":true}`, id)
	fmt.Fprintf(c.conn, "POST /v1/execs HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	response, err := http.ReadResponse(c.from, nil)
	if err != nil {
		b.Fatal(err)
	}
	text, _ := io.ReadAll(response.Body)
	if !strings.Contains(string(text), `"exit_code":0`) {
		b.Fatalf("%s", text)
	}
}

var benchSerial atomic.Int64

// reportCPU shows what each operation cost in processor time, of the guest and all that it ran: on a
// shared machine that says more than the time that passed.
func reportCPU(b *testing.B, g *testGuest) func() {
	before := cpuTime(g.cmd.Process.Pid)
	return func() {
		ticks := cpuTime(g.cmd.Process.Pid) - before
		b.ReportMetric(float64(ticks)*10_000/float64(b.N), "cpu-us/op")
	}
}

// cpuTime is user and system time of a process and of those it waited for, in ticks of 10 ms.
func cpuTime(pid int) (ticks int) {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	for _, field := range fields[11:15] {
		n, _ := strconv.Atoi(field)
		ticks += n
	}
	return ticks
}

func BenchmarkHello(b *testing.B) {
	g := startGuest(b)
	c := dialRaw(b, g)
	for range b.N {
		fmt.Fprint(c.conn, "GET /v1/hello HTTP/1.1\r\nHost: g\r\n\r\n")
		response, err := http.ReadResponse(c.from, nil)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
	}
}

func BenchmarkExecTrue(b *testing.B) {
	g := startGuest(b)
	c := dialRaw(b, g)
	defer reportCPU(b, g)()
	for range b.N {
		c.runTrue(b, benchSerial.Add(1))
	}
}

func BenchmarkExecTrueSixteenAtOnce(b *testing.B) {
	g := startGuest(b)
	b.SetParallelism(8) // times GOMAXPROCS, which is 2 where this is measured
	defer reportCPU(b, g)()
	b.RunParallel(func(pb *testing.PB) {
		c := dialRaw(b, g)
		for pb.Next() {
			c.runTrue(b, benchSerial.Add(1))
		}
	})
}

// BenchmarkForkExecTrue is the yardstick: fork and exec by the standard library.
func BenchmarkForkExecTrue(b *testing.B) {
	before := cpuTime(os.Getpid())
	defer func() { b.ReportMetric(float64(cpuTime(os.Getpid())-before)*10_000/float64(b.N), "cpu-us/op") }()
	for range b.N {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAttachThroughput(b *testing.B) {
	g := startGuest(b)
	const size = 400 << 20
	b.SetBytes(size)
	defer reportCPU(b, g)()
	for range b.N {
		r := g.start([]string{"/bin/sh", "-c", "read a; exec head -c 419430400 /dev/zero"}, fields{"stdin_open": true})
		a := g.attach(r.ExecID, "after=0")
		a.write(frameStdin, []byte("go\n"))
		total := 0
		for _, f := range drain(a) {
			total += f
		}
		if total != size {
			b.Fatalf("%d bytes", total)
		}
	}
}

func drain(a *attachment) (sizes []int) {
	for {
		f, ok := a.next()
		if !ok {
			return sizes
		}
		sizes = append(sizes, len(f.data))
	}
}
