package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestInstallPutsProgramAndTokenInPlaceAndOverWhatAnAttemptBeforeItLeft(t *testing.T) {
	place := t.TempDir()
	program, token := filepath.Join(place, "program"), filepath.Join(place, "shared", "token")
	t.Setenv(tokenVariable, "0123456789abcdef")
	for range 2 {
		if err := install([]string{"--program", program, "--token-file", token}); err != nil {
			t.Fatal(err)
		}
	}
	if taken, err := takeToken(token); err != nil || string(taken) != "0123456789abcdef" {
		t.Fatalf("token %q, %v", taken, err)
	}
	if facts, err := os.Stat(program); err != nil || facts.Mode().Perm() != 0o555 || facts.Size() == 0 {
		t.Fatalf("program %v, %v", facts, err)
	}
}

func TestInstallWithoutATokenPutsNothingInPlace(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	t.Setenv(tokenVariable, "")
	if err := install([]string{"--program", program, "--token-file", program + ".token"}); err == nil {
		t.Fatal("it went on")
	}
	if _, err := os.Stat(program); !os.IsNotExist(err) {
		t.Fatal("there is a program")
	}
}

func TestInstallPutsInPlaceOnlyWhatItIsAskedFor(t *testing.T) {
	place := t.TempDir()
	program, token := filepath.Join(place, "program"), filepath.Join(place, "token")
	t.Setenv(tokenVariable, "0123456789abcdef")
	if err := install([]string{"--token-file", token}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); !os.IsNotExist(err) {
		t.Fatal("there is a program")
	}
	t.Setenv(tokenVariable, "")
	if err := install([]string{"--program", program}); err != nil {
		t.Fatal(err)
	}
	if facts, err := os.Stat(program); err != nil || facts.Mode().Perm() != 0o555 {
		t.Fatalf("program %v, %v", facts, err)
	}
}

func TestReachSaysWhetherTheLastTryCameThrough(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if status := reach([]string{address, "--tries", "2", "--pause", "0"}); status != 0 {
		t.Fatalf("somebody listens, and the status is %d", status)
	}
	listener.Close()
	if status := reach([]string{address}); status != 1 {
		t.Fatalf("nobody listens, and the status is %d", status)
	}
}
