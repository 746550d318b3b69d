/* A small pool of threads that sleeps between calls. */
#ifndef CTCBIND_THREADS_H
#define CTCBIND_THREADS_H

typedef void (*ctc_task)(void *arg, int chunk, int slot);

/* Runs task for every chunk, on the caller (slot 0) and at most slots - 1 workers, and returns when all are done. */
void ctcbind_parallel(int slots, int chunks, ctc_task task, void *arg);

/* Lets another thread run. */
void ctcbind_yield(void);

#endif
