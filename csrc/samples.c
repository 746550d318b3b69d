#include "samples.h"

#include "rows.h"
#include "threads.h"

typedef struct batch {
    ctcbind_sample_task task;
    void *arg;
    ctcbind_question question;
} batch;

static void run_chunk(void *arg, int n, int slot)
{
    batch *b = arg;
    if (!ctcbind_stopped(&b->question, slot)) b->task(b->arg, n);
}

int ctcbind_each_sample(int32_t N, int32_t threads, ctcbind_ask stop, ctcbind_sample_task task, void *arg)
{
    batch b = {.task = task, .arg = arg};
    ctcbind_may_stop(&b.question, stop);
    ctcbind_parallel(threads, threads, N, run_chunk, &b);
    return ctcbind_stopped(&b.question, -1) ? CTCBIND_ROWS_STOPPED : CTCBIND_ROWS_OK;
}
