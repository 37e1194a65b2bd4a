#include "textflag.h"

// func cloneShim(flags, stack uintptr) (pid, errno uintptr)
// func cloneCommand(flags, stack uintptr) (pid, errno uintptr)
//
// clone with a stack of the child's own, on which it calls its main function and never returns: so it
// touches no frame of the parent, whose memory it shares. Its launch lies on top of that stack.

#define CLONE(main) \
	MOVQ	flags+0(FP), DI; \
	MOVQ	stack+8(FP), SI; \
	XORL	DX, DX; \
	XORL	R10, R10; \
	XORL	R8, R8; \
	MOVL	$56, AX; \
	SYSCALL; \
	TESTQ	AX, AX; \
	JZ	child; \
	CMPQ	AX, $0xfffffffffffff001; \
	JCS	ok; \
	NEGQ	AX; \
	MOVQ	$0, pid+16(FP); \
	MOVQ	AX, errno+24(FP); \
	RET; \
ok: \
	MOVQ	AX, pid+16(FP); \
	MOVQ	$0, errno+24(FP); \
	RET; \
child: \
	CALL	main(SB); \
	INT	$3

TEXT ·cloneShim(SB), NOSPLIT, $0-32
	CLONE(·shimMain)

TEXT ·cloneCommand(SB), NOSPLIT, $0-32
	CLONE(·commandMain)
