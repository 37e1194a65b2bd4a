package main

import (
	"os"
	"os/signal"
	"syscall"
)

// waitForEnd does nothing until it is asked to end: so that a node pulls the image that it stands in, and
// keeps it. It is no sandbox.
func waitForEnd() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	<-asked
	os.Exit(0)
}
