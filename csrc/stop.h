/* Whether a long call is to end before its time. */
#ifndef CTCBIND_STOP_H
#define CTCBIND_STOP_H

#include <math.h>
#include <stdatomic.h>
#include <time.h>

/* Asked on the calling thread, some twenty times a second. */
typedef int (*ctcbind_ask)(void);

/* Zeros: nobody is asked. */
typedef struct ctcbind_question {
    ctcbind_ask ask;
    double asked; /* when, in nanoseconds; the calling thread's own */
    atomic_int stopped;
} ctcbind_question;

static inline double ctcbind_now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* ask may be NULL. */
static inline void ctcbind_may_stop(ctcbind_question *q, ctcbind_ask ask)
{
    q->ask = ask;
    if (ask) q->asked = ctcbind_now();
}

/* Before each sample, or frame: slot 0 is the calling thread, the others hear of it from that. */
static inline int ctcbind_stopped(ctcbind_question *q, int slot)
{
    const double between = 50e6;
    if (!q->ask) return 0;
    if (slot == 0 && fabs(ctcbind_now() - q->asked) >= between) { /* the clock may have been set back */
        if (q->ask()) atomic_store_explicit(&q->stopped, 1, memory_order_relaxed);
        q->asked = ctcbind_now();
    }
    return atomic_load_explicit(&q->stopped, memory_order_relaxed);
}

#endif
