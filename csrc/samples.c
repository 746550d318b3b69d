#include "samples.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "rows.h"
#include "threads.h"

#define BETWEEN_QUESTIONS 50e6 /* nanoseconds */

typedef struct batch {
    ctcbind_ask stop;
    ctcbind_sample_task task;
    void *arg;
    double asked; /* when; the calling thread's own */
    atomic_int stopped;
} batch;

static double now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void run_chunk(void *arg, int n, int slot)
{
    batch *b = arg;
    if (slot == 0 && b->stop && fabs(now() - b->asked) >= BETWEEN_QUESTIONS) { /* the clock may have been set back */
        if (b->stop()) atomic_store_explicit(&b->stopped, 1, memory_order_relaxed);
        b->asked = now();
    }
    if (!atomic_load_explicit(&b->stopped, memory_order_relaxed)) b->task(b->arg, n);
}

int ctcbind_each_sample(int32_t N, int32_t threads, ctcbind_ask stop, ctcbind_sample_task task, void *arg)
{
    batch b = {.stop = stop, .task = task, .arg = arg, .asked = now()};
    atomic_init(&b.stopped, 0);
    ctcbind_parallel(threads, N, run_chunk, &b);
    return atomic_load(&b.stopped) ? CTCBIND_ROWS_STOPPED : CTCBIND_ROWS_OK;
}
