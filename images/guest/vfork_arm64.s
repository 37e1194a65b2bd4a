#include "textflag.h"

// func vforkOnto(stack uintptr) (pid, errno uintptr)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD) with a stack of the child's own, so that it never touches a
// frame that the waiting parent will come back to.
TEXT ·vforkOnto(SB), NOSPLIT, $16-24
	MOVD	$0x4111, R0
	MOVD	stack+0(FP), R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCC	ok
	NEG	R0, R0
	MOVD	$0, pid+8(FP)
	MOVD	R0, errno+16(FP)
	RET
ok:
	MOVD	R0, pid+8(FP)
	MOVD	$0, errno+16(FP)
	RET
child:
	BL	·commandMain(SB)
	BRK
