/* When workers look out for the next call, and when they sleep at once: seen from within the pool. */
#include "threads.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS = 60 };

static void count(void *arg, int chunk, int slot)
{
    (void)chunk, (void)slot;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void check(int right, const char *what)
{
    if (right) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

static void let_pass(int64_t time)
{
    for (int64_t end = nanoseconds() + time; nanoseconds() < end;) usleep(1000);
}

static int looks_out(void)
{
    lock(&pool.lock);
    int watching = pool.watching;
    unlock(&pool.lock);
    return watching;
}

static void forget_crowds(void) { atomic_store(&pool.crowded, 0); }

static void call(void)
{
    atomic_int done = 0;
    ctcbind_parallel(2, 2, 8, count, &done);
    check(atomic_load(&done) == 8, "each chunk is done once");
}

/* Whether a worker looks out at any time after calls that begin so long after the last has ended. */
static int seen_after(int64_t gap, int64_t time)
{
    for (int64_t end = nanoseconds() + time; nanoseconds() < end;) {
        if (gap) let_pass(gap);
        forget_crowds();
        call();
        for (int k = 0; k < 100; k++)
            if (looks_out()) return 1;
    }
    return 0;
}

int main(int words, char **word)
{
    if (words != 2) return 2;
    prepare();
    pool.processors = 64;
    if (!strcmp(word[1], "alone")) {
        check(ctcbind_awake(1), "the caller is always there");
        check(!ctcbind_awake(2), "nobody is before the first call");
        for (int k = 0;; k++) { /* unless something takes the processor away in between */
            ctcbind_left();
            if (ctcbind_awake(2)) break;
            check(k < 1000, "a call that follows at once is worth a thread");
        }
        let_pass(2 * WATCH);
        check(!ctcbind_awake(2), "later none is");
        crowded(nanoseconds() - 2 * STUCK, STUCK);
        for (int k = 0; k < 1000; k++) {
            int64_t now = nanoseconds();
            ctcbind_left();
            int lend = ctcbind_awake(2);
            if (now - atomic_load(&pool.crowded) < CROWDED / 2) check(!lend, "none is on a crowded machine");
        }
        forget_crowds();
        crowded(nanoseconds(), VAIN); /* unless the processor is taken away for longer than that */
        check(!atomic_load(&pool.crowded), "to wait for a moment is no sign of that");
        pool.processors = pool.workers = 2;
        ctcbind_left();
        check(!ctcbind_awake(2), "nor where threads are more than processors");
    } else if (!strcmp(word[1], "few")) {
        atomic_int done = 0;
        for (int k = 0; k < 100; k++) ctcbind_parallel(8, 2, 16, count, &done);
        check(atomic_load(&done) == 1600 && pool.workers == 2, "no more are woken than are worth it");
    } else if (!strcmp(word[1], "at once")) {
        check(seen_after(0, SECONDS * INT64_C(1000000000)), "workers look out where calls follow each other at once");
        let_pass(100 * WATCH);
        check(!looks_out(), "not for long");
    } else {
        check(!seen_after(2 * WATCH, INT64_C(300000000)), "nobody looks out where calls lie apart");
    }
    return 0;
}
