package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tokenVariable holds the token in the environment of the process that installs, and of no other.
const tokenVariable = "SANDBOX_GUEST_TOKEN"

// install puts this program, the token of one sandbox, or both where the sandbox's first process finds them.
// It runs in a container of its own, before the sandbox's, with whose environment it shares nothing.
func install(args []string) error {
	var program, tokenFile string
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flags.StringVar(&program, "program", "", "where the program is copied to")
	flags.StringVar(&tokenFile, "token-file", "", "where the token goes")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || (program == "" && tokenFile == "") {
		if err == nil {
			flags.Usage()
		}
		os.Exit(exitUsage)
	}
	token := os.Getenv(tokenVariable)
	if tokenFile != "" && token == "" {
		return fmt.Errorf("there is no token in %s", tokenVariable)
	}
	if program != "" {
		if err := copySelf(program); err != nil {
			return err
		}
	}
	if tokenFile == "" {
		return nil
	}
	return writeNew(tokenFile, 0o400, func(to io.Writer) error {
		_, err := io.WriteString(to, token)
		return err
	})
}

func copySelf(to string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	return writeNew(to, 0o555, func(file io.Writer) error {
		_, err := io.Copy(file, self)
		return err
	})
}

// writeNew writes a whole file, over one that an attempt before this one left.
func writeNew(path string, mode os.FileMode, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
