package main

const (
	sysCloseRange = 436
	sysRenameat2  = 316
	sysPrlimit64  = 302
	sysWaitid     = 247
	sysSetfsuid   = 122
	sysSetfsgid   = 123
	sysUtimensat  = 280
)
