package main

import (
	"strconv"
	"strings"
	"syscall"
)

var signalNames = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1",
	11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP",
	20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH",
	29: "IO", 30: "PWR", 31: "SYS",
}

// signalName is the name without SIG, or the number of a real-time signal.
func signalName(s syscall.Signal) string {
	if s > 0 && int(s) < len(signalNames) {
		return signalNames[s]
	}
	return strconv.Itoa(int(s))
}

// parseSignal takes a name with or without SIG, or a number from 1 to 63.
func parseSignal(text string) (syscall.Signal, *problem) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for number, known := range signalNames {
		if known != "" && known == name {
			return syscall.Signal(number), nil
		}
	}
	if number, err := strconv.Atoi(text); err == nil && number > 0 && number < 64 {
		return syscall.Signal(number), nil
	}
	return 0, fail("bad_request", "there is no signal %q", text)
}
