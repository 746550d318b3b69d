#define _POSIX_C_SOURCE 199309L /* for nanosleep under -std=c11 */
#include "samples.h"

#include "rows.h"
#include "threads.h"

typedef struct batch {
    ctcbind_sample_task task;
    void *arg;
    int32_t N;
    ctcbind_question question;
    atomic_int done; /* samples */
} batch;

#ifdef _MSC_VER
#define PER_THREAD __declspec(thread)
#else
#define PER_THREAD _Thread_local
#endif

/* Whom the task at hand hears of it from. */
typedef struct listener {
    ctcbind_question *question;
    int slot;
} listener;

static PER_THREAD listener here;

static void rest(void)
{
#ifndef _WIN32 /* where there is one thread */
    const struct timespec some = {0, 50000};
    nanosleep(&some, NULL);
#endif
}

/* A thread has no more samples: the calling one goes on asking while others are at work, and they leave it that. */
static void watch(batch *b, int slot)
{
    while (atomic_load_explicit(&b->done, memory_order_relaxed) < b->N) {
        ctcbind_stopped(&b->question, slot);
        rest();
    }
}

static void run_chunk(void *arg, int n, int slot)
{
    batch *b = arg;
    listener outer = here; /* a task that a signal's handler has interrupted */
    if (n >= b->N) {
        watch(b, slot);
        return;
    }
    if (!ctcbind_stopped(&b->question, slot)) {
        here = (listener){&b->question, slot};
        b->task(b->arg, n);
        here = outer;
    }
    atomic_fetch_add_explicit(&b->done, 1, memory_order_relaxed);
}

int ctcbind_sample_stopped(void) { return here.question && ctcbind_stopped(here.question, here.slot); }

int ctcbind_each_sample(int32_t N, int32_t threads, ctcbind_ask stop, ctcbind_sample_task task, void *arg)
{
    int32_t crew = threads < N ? threads : N;
    batch b = {.task = task, .arg = arg, .N = N};
    ctcbind_may_stop(&b.question, stop);
    ctcbind_parallel(crew, crew, crew > 1 && stop ? N + crew : N, run_chunk, &b);
    return ctcbind_stopped(&b.question, -1) ? CTCBIND_ROWS_STOPPED : CTCBIND_ROWS_OK;
}
