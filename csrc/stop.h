/* Whether a long call is to end before its time. */
#ifndef CTCBIND_STOP_H
#define CTCBIND_STOP_H

#include <math.h>
#include <stdint.h>
#include <time.h>

#include "atomics.h"
#include "flush.h"

/* Asked on the calling thread, some twenty times a second. */
typedef int (*ctcbind_ask)(void);

/* Nanoseconds from one time to the next. */
#ifndef BETWEEN_QUESTIONS
#define BETWEEN_QUESTIONS 50e6
#endif
/* Within a sample the clock is looked at after so many states: one look takes as long as some hundred of them at their
 * fastest. */
#ifndef STATES_BETWEEN
#define STATES_BETWEEN (1 << 16)
#endif

/* Zeros: nobody is asked. */
typedef struct ctcbind_question {
    ctcbind_ask ask;
    atomic_int stopped;
    char apart[64]; /* what follows is the calling thread's own, and in no line that others read */
    double asked;   /* when it was last asked, in nanoseconds */
    int64_t states; /* gone through since the clock was last looked at */
    unsigned mode;  /* of its arithmetic, outside of samples: whoever is asked may compute */
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
    if (!ask) return;
    q->asked = ctcbind_now();
    q->mode = flush_mode();
}

/* Before each sample, or frame: slot 0 is the calling thread, the others hear of it from that. */
static inline int ctcbind_stopped(ctcbind_question *q, int slot)
{
    if (!q->ask) return 0;
    int stopped = atomic_load_explicit(&q->stopped, memory_order_relaxed);
    if (!stopped && slot == 0 && fabs(ctcbind_now() - q->asked) >= BETWEEN_QUESTIONS) { /* or the clock was set back */
        unsigned mode = flush_mode();
        flush_end(q->mode);
        stopped = q->ask() != 0;
        flush_end(mode);
        if (stopped) atomic_store_explicit(&q->stopped, 1, memory_order_relaxed);
        q->asked = ctcbind_now();
    }
    return stopped;
}

/* Within a sample, after so many states more. */
static inline int ctcbind_stopped_within(ctcbind_question *q, int slot, int64_t states)
{
    if (slot == 0) {
        if ((q->states += states) < STATES_BETWEEN) slot = -1;
        else q->states = 0;
    }
    return ctcbind_stopped(q, slot);
}

/* For a calling thread that waits for others: see threads.h. */
static inline void ctcbind_ask_meanwhile(void *question) { ctcbind_stopped(question, 0); }

#endif
