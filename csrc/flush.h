/* Results too small to be normal numbers become 0 while samples are computed, where the processor would else take a
 * hundred times as long over them: nothing that small has any weight. Elsewhere they cost nothing and stay. */
#ifndef CTCBIND_FLUSH_H
#define CTCBIND_FLUSH_H

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>
enum { FLUSHED_OPERANDS = 0x40 };
static inline unsigned flush_mode(void) { return _mm_getcsr(); }
/* Results alone, not operands, whatever the caller has set: halves are widened by way of such numbers (half.h). */
static inline unsigned flush_begin(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr((before | _MM_FLUSH_ZERO_ON) & ~(unsigned)FLUSHED_OPERANDS);
    return before;
}
static inline void flush_end(unsigned before) { _mm_setcsr(before); }
/* Neither results nor operands. */
static inline unsigned flush_nothing(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before & ~(unsigned)(_MM_FLUSH_ZERO_ON | FLUSHED_OPERANDS));
    return before;
}
#else
static inline unsigned flush_mode(void) { return 0; }
static inline unsigned flush_begin(void) { return 0; }
static inline void flush_end(unsigned before) { (void)before; }
static inline unsigned flush_nothing(void) { return 0; }
#endif

#endif
