#include "textflag.h"

// func vforkOnto(stack uintptr) (pid, errno uintptr)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD) with a stack of the child's own, so that it never touches a
// frame that the waiting parent will come back to.
TEXT ·vforkOnto(SB), NOSPLIT, $0-24
	MOVQ	$0x4111, DI
	MOVQ	stack+0(FP), SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	CMPQ	AX, $0xfffffffffffff001
	JCS	ok
	NEGQ	AX
	MOVQ	$0, pid+8(FP)
	MOVQ	AX, errno+16(FP)
	RET
ok:
	MOVQ	AX, pid+8(FP)
	MOVQ	$0, errno+16(FP)
	RET
child:
	CALL	·commandMain(SB)
	INT	$3
