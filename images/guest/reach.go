package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"time"
)

// Two pods prove by these whether a cluster enforces its network policies: one listens and says nothing,
// the other tries to reach it. Neither is a sandbox.

const reachPatience = time.Second

// listenAlone takes connections and closes them, until it is ended.
func listenAlone(args []string) error {
	if len(args) != 1 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		conn.Close()
	}
}

// reach tries to connect, time after time. The status is 0 if the last try came through, 1 if it did not:
// for a new pod policies may begin to hold a moment late.
func reach(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	flags := flag.NewFlagSet("reach", flag.ContinueOnError)
	tries := flags.Int("tries", 1, "how often to try")
	pauseS := flags.Float64("pause", 0.5, "seconds between two tries")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 || *tries < 1 {
		return exitUsage
	}
	status := 1
	for n := 0; n < *tries; n++ {
		if n > 0 {
			time.Sleep(time.Duration(*pauseS * float64(time.Second)))
		}
		status = 1
		if conn, err := net.DialTimeout("tcp", args[0], reachPatience); err == nil {
			conn.Close()
			status = 0
		}
	}
	return status
}
