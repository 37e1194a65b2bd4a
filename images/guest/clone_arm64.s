#include "textflag.h"

// func cloneShim(flags, stack uintptr) (pid, errno uintptr)
// func cloneCommand(flags, stack uintptr) (pid, errno uintptr)
//
// clone with a stack of the child's own, on which it calls its main function and never returns: so it
// touches no frame of the parent, whose memory it shares. Its launch lies on top of that stack.

#define CLONE(main) \
	MOVD	flags+0(FP), R0; \
	MOVD	stack+8(FP), R1; \
	MOVD	$0, R2; \
	MOVD	$0, R3; \
	MOVD	$0, R4; \
	MOVD	$220, R8; \
	SVC; \
	CBZ	R0, child; \
	CMN	$4095, R0; \
	BCC	ok; \
	NEG	R0, R0; \
	MOVD	$0, R1; \
	MOVD	R1, pid+16(FP); \
	MOVD	R0, errno+24(FP); \
	RET; \
ok: \
	MOVD	R0, pid+16(FP); \
	MOVD	$0, R0; \
	MOVD	R0, errno+24(FP); \
	RET; \
child: \
	BL	main(SB); \
	BRK

TEXT ·cloneShim(SB), NOSPLIT, $16-32
	CLONE(·shimMain)

TEXT ·cloneCommand(SB), NOSPLIT, $16-32
	CLONE(·commandMain)
