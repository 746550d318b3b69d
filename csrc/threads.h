/* A small pool of threads that sleeps between calls, unless they follow each other at once. */
#ifndef CTCBIND_THREADS_H
#define CTCBIND_THREADS_H

#include "atomics.h"

#ifdef _MSC_VER
#define PER_THREAD __declspec(thread)
#else
#define PER_THREAD _Thread_local
#endif

enum { MOST_THREADS = 256 }; /* of one call, the caller's among them */

typedef void (*ctc_task)(void *arg, int chunk, int slot);

/* Runs task for every chunk, on the caller (slot 0) and at most slots - 1 others, of which at most `most` are woken for
 * it, and returns when all are done: 0. Or 1 in a child of a fork in between, by whoever was asked: it has none of the
 * others, nor what they were at, and is to begin anew, on itself alone. */
int ctcbind_parallel(int slots, int most, int chunks, ctc_task task, void *arg);

/* What a caller does again and again, at least some twenty times a second, while it waits for others that are at work;
 * a NULL: nothing. */
typedef struct ctcbind_waiter {
    void (*ask)(void *arg);
    void *arg;
} ctcbind_waiter;

/* Sets it for the calling thread, and returns the one before. */
ctcbind_waiter ctcbind_wait_with(ctcbind_waiter waiter);

/* Whether so many threads, the caller one of them, look out for work, or are worth waking for little of it, as the last
 * call has just ended: they will look out for the next. */
int ctcbind_awake(int slots);

/* A call that might have been for several threads ends; after ctcbind_parallel this is known. */
void ctcbind_left(void);

/* Waits until another thread, which is at work, has brought a value to what is wanted; returns it. It is less where
 * ctcbind_parallel will return 1. */
int ctcbind_await(atomic_int *value, int wanted);

/* From now on works on the threads of OpenMP that another library keeps, while they spin for their next work, where as
 * many are asked for as OpenMP would take: they would not let others run. The arguments are libgomp's GOMP_parallel,
 * omp_get_thread_num, omp_get_max_threads and omp_in_parallel. */
typedef void (*ctcbind_gomp_parallel)(void (*work)(void *), void *arg, unsigned threads, unsigned flags);
typedef int (*ctcbind_omp_get)(void);
void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside);

#endif
