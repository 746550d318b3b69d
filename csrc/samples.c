#include "samples.h"

#include "rows.h"
#include "threads.h"

typedef struct batch {
    ctcbind_sample_task task;
    void *arg;
    ctcbind_question question;
} batch;

/* What the task at hand asks whether to stop. */
typedef struct listener {
    ctcbind_question *question;
    int slot;
} listener;

static PER_THREAD listener here;

static void run_chunk(void *arg, int n, int slot)
{
    batch *b = arg;
    listener outer = here; /* of a task that a signal's handler has interrupted */
    if (ctcbind_stopped(&b->question, slot)) return;
    here = (listener){&b->question, slot};
    b->task(b->arg, n);
    here = outer;
}

int ctcbind_sample_stopped(int64_t states)
{
    return here.question && ctcbind_stopped_within(here.question, here.slot, states);
}

int ctcbind_sample_interrupted(void) { return here.question && ctcbind_stopped(here.question, here.slot); }

int ctcbind_each_sample(int32_t N, int32_t threads, ctcbind_ask stop, ctcbind_sample_task task, void *arg)
{
    batch b = {.task = task, .arg = arg};
    ctcbind_may_stop(&b.question, stop);
    ctcbind_waiter before = ctcbind_wait_with((ctcbind_waiter){ctcbind_ask_meanwhile, &b.question});
    if (ctcbind_parallel(threads, threads, N, run_chunk, &b))
        for (int32_t n = 0; n < N; n++) run_chunk(&b, n, 0);
    ctcbind_wait_with(before);
    return ctcbind_stopped(&b.question, -1) ? CTCBIND_ROWS_STOPPED : CTCBIND_ROWS_OK;
}
