package main

const (
	sysCloseRange = 436
	sysRenameat2  = 276
	sysPrlimit64  = 261
	sysWaitid     = 95
	sysSetfsuid   = 151
	sysSetfsgid   = 152
	sysUtimensat  = 88
)
