/* The samples of a batch, one by one, over threads: for all that is not the loss itself. */
#ifndef CTCBIND_SAMPLES_H
#define CTCBIND_SAMPLES_H

#include <stdint.h>

#include "stop.h"

typedef void (*ctcbind_sample_task)(void *arg, int32_t n);

/* Runs task for n = 0 to N - 1. Returns CTCBIND_ROWS_STOPPED where `stop`, which may be NULL, said so, else
 * CTCBIND_ROWS_OK. Where `stop` forks, the task runs for all samples again in the child, some of which were done. */
int ctcbind_each_sample(int32_t N, int32_t threads, ctcbind_ask stop, ctcbind_sample_task task, void *arg);

/* Within a task, at each frame of so many states: whether to leave it, as the batch is stopped. What it leaves is not
 * looked at. */
int ctcbind_sample_stopped(int64_t states);

/* The same as a question: for a loss within a task, whose frames are not the task's own. */
int ctcbind_sample_interrupted(void);

#endif
