// Command sandbox-guest is the first process of every sandbox: it runs commands and touches files
// there for the daemon outside. The contract is docs/guest-protocol.md.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

const usage = `usage: sandbox-guest serve (--socket PATH | --listen ADDR --token-file FILE)
                           [--orphan-limit SECONDS] [--allow-local-peers] [--cgroup-root DIR]
                           [--shell PATH] [--inherit-env] [--user NAME] [--legacy FILE]
       sandbox-guest install [--program FILE] [--token-file FILE]
       sandbox-guest wait
       sandbox-guest listen ADDR
       sandbox-guest reach ADDR [--tries N] [--pause SECONDS]
       sandbox-guest version
`

// options are the arguments of serve.
type options struct {
	socket          string
	listen          string
	tokenFile       string
	orphanLimitS    float64
	allowLocalPeers bool
	cgroupRoot      string
	shell           string
	inheritEnv      bool
	user            string
	legacy          string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Printf("sandbox-guest %s, protocol %d\n", version, protocolNumber)
		return
	}
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "install":
		endWith(install(os.Args[2:]))
	case "wait":
		waitForEnd()
	case "listen":
		endWith(listenAlone(os.Args[2:]))
	case "reach":
		os.Exit(reach(os.Args[2:]))
	}
	if verb != "serve" {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
	o := parseOptions(os.Args[2:])
	if err := serve(o); err != nil {
		exit(1, err.Error())
	}
}

// endWith ends the process of a verb that is none of a sandbox's first process.
func endWith(err error) {
	if err != nil {
		exit(1, err.Error())
	}
	os.Exit(0)
}

func parseOptions(args []string) options {
	var o options
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flags.StringVar(&o.socket, "socket", "", "Unix socket to listen on")
	flags.StringVar(&o.listen, "listen", "", "TCP address to listen on")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the token for TCP; deleted once read")
	flags.Float64Var(&o.orphanLimitS, "orphan-limit", 3600, "seconds without a word before an unclaimed guest exits")
	flags.BoolVar(&o.allowLocalPeers, "allow-local-peers", false, "answer peers from inside the sandbox: where the engine's own way in ends at loopback")
	flags.StringVar(&o.cgroupRoot, "cgroup-root", "/sys/fs/cgroup", "where the sandbox's own cgroup is visible")
	flags.StringVar(&o.shell, "shell", "", "/bin/bash or /bin/sh; the first that is there if not given")
	flags.BoolVar(&o.inheritEnv, "inherit-env", false, "commands get the guest's own environment below the claim's")
	flags.StringVar(&o.user, "user", "", "whom commands run as where the claim names nobody; else the guest's own user")
	flags.StringVar(&o.legacy, "legacy", "", "file that is read after our end: kills for lack of memory that we outlived")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || (o.socket == "") == (o.listen == "") ||
		(o.listen != "" && o.tokenFile == "") || !(o.orphanLimitS > 0) {
		if err == nil {
			flags.Usage()
		}
		os.Exit(exitUsage)
	}
	return o
}

// takeToken reads the token and deletes its file.
func takeToken(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("the token file must be deleted: %w", err)
	}
	token := bytes.TrimSpace(data)
	if len(token) < 16 {
		return nil, fmt.Errorf("the token is shorter than 16 bytes")
	}
	return token, nil
}
