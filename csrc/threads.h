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
 * it. Returns 0 when all chunks are done. Returns 1 in a child process, if what was asked on the caller's thread has
 * forked meanwhile: the child has none of the other threads, nor the chunks that they were at work on, and its caller
 * has to do all chunks again, by itself. */
int ctcbind_parallel(int slots, int most, int chunks, ctc_task task, void *arg);

/* What a caller does while it waits for others that are at work, some twenty times a second or more often. NULL:
 * nothing. */
typedef struct ctcbind_waiter {
    void (*ask)(void *arg);
    void *arg;
} ctcbind_waiter;

/* Sets it for the calling thread, and returns the one before. */
ctcbind_waiter ctcbind_wait_with(ctcbind_waiter waiter);

/* Whether so many threads, the caller one of them, are worth using for little work: either they are awake, or the last
 * call has just ended, so that they will stay awake for the next if they are woken now. */
int ctcbind_awake(int slots);

/* To be called where a call ends that could have used several threads, and did not use ctcbind_parallel, which notes it
 * by itself: so it is known how soon calls follow each other. */
void ctcbind_left(void);

/* Waits until another thread, which is at work, has brought a value to `wanted` or past it; returns the value. It is
 * less where ctcbind_parallel will return 1. */
int ctcbind_await(atomic_int *value, int wanted);

/* From now on calls run on the OpenMP threads of another library (PyTorch's, say) in place of the pool's own, if those
 * threads spin, waiting for their next work, and a call asks for as many as OpenMP would take. Spinning threads would
 * keep the pool's from running. The arguments are libgomp's GOMP_parallel, omp_get_thread_num, omp_get_max_threads and
 * omp_in_parallel. */
typedef void (*ctcbind_gomp_parallel)(void (*work)(void *), void *arg, unsigned threads, unsigned flags);
typedef int (*ctcbind_omp_get)(void);
void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside);

#endif
