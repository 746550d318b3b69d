/* The numbers of scratch memory, in which floats and doubles take turns: to C, memory from malloc is of the type that
 * was stored there last. LLVM moves the store of a float before the load of the double in whose place it goes, and
 * Clang 22 made NaN of gradients so, in the plain kernel on AArch64 and s390x. */
#ifndef CTCBIND_NUMBER_H
#define CTCBIND_NUMBER_H

#if defined(__clang__)
typedef float __attribute__((may_alias)) ctc_float;
typedef double __attribute__((may_alias)) ctc_double;
#else
typedef float ctc_float;
typedef double ctc_double;
#endif

#endif
