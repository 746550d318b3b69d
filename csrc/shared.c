/* The rows of a sample are dealt out in as many ranges as there are threads: within a range rows follow each other,
 * and the next call finds them in the same thread's cache. A thread that has finished its range takes from the ends of
 * others'. */
#include "shared.h"

#include <limits.h>
#include <math.h>

#include "flush.h"
#include "threads.h"

/* Rows are taken by pieces of four; of a thread's own range, while many are left, up to a block at once. */
enum { LINE = 64, PIECE = 4, WHOLE = BLOCK / PIECE };

typedef struct {
    atomic_uint_least64_t left; /* the pieces that are left: the first one, times 2^32, plus the end */
    char apart[LINE - sizeof(atomic_uint_least64_t)];
} range_t;

typedef struct {
    ctc_phase run;
    const ctc_sample *s;
    const ctc_extent *extent;
    void *scratch;
    int threads, pieces, blocks;
    double loss;
    range_t *ranges;     /* one for each thread */
    atomic_int *missing; /* rows of each block that are not summed yet */
    atomic_int summed;   /* how many blocks' emissions are known */
    atomic_int back;     /* how many blocks beta is through with; INT_MAX where there is no gradient */
} shared_t;

/* Takes rows of one block, from *first to before the one returned; 0 where none are left. */
static int take_rows(shared_t *a, int slot, int *first)
{
    for (int tried = 0, k = slot; tried < a->threads; tried++, k = k + 1 < a->threads ? k + 1 : 0) {
        atomic_uint_least64_t *left = &a->ranges[k].left;
        uint64_t now = atomic_load_explicit(left, memory_order_relaxed), then;
        while (now >> 32 < (uint32_t)now) {
            int from = (int)(now >> 32), end = (int)(uint32_t)now;
            if (k == slot) {
                int count = (end - from) / 2, most = WHOLE - from % WHOLE;
                count = count < 1 ? 1 : count < most ? count : most;
                end = from + count;
                then = now + ((uint64_t)count << 32);
            } else {
                from = end - 1;
                then = now - 1;
            }
            if (!atomic_compare_exchange_weak_explicit(left, &now, then, memory_order_relaxed, memory_order_relaxed))
                continue;
            *first = from * PIECE;
            return end * PIECE < a->s->T ? end * PIECE : a->s->T;
        }
    }
    return 0;
}

static void do_phase(shared_t *a, int phase, int first, int end, int slot)
{
    a->run(a->s, a->extent, a->scratch, phase, first, end, slot);
}

static int is_stopped(const shared_t *a, int slot, int64_t states)
{
    return a->s->question && ctcbind_stopped_within(a->s->question, slot, states);
}

/* What is stopped is counted as done all the same: others wait for it. */
static void run_rows(shared_t *a, int slot)
{
    int first, end = take_rows(a, slot, &first);
    if (!end) return;
    int block = first / BLOCK, rows = end - first;
    if (!is_stopped(a, slot, (int64_t)rows * a->s->C)) do_phase(a, PHASE_ROWS, first, end, slot);
    if (atomic_fetch_sub_explicit(&a->missing[block], rows, memory_order_acq_rel) > rows) return;
    if (!is_stopped(a, -1, 0)) do_phase(a, PHASE_EMISSIONS, block, block + 1, slot); /* not one row is missing */
    atomic_fetch_add_explicit(&a->summed, 1, memory_order_acq_rel);
}

/* First come the rows, then the paths, then the gradient, block by block from the last on, each as soon as beta has
 * been through it. Chunks are claimed in order: whoever waits here waits for a thread that is at work. */
static void run_chunk(void *arg, int chunk, int slot)
{
    shared_t *a = arg;
    unsigned mode = flush_begin();
    if (chunk < a->pieces) run_rows(a, slot);
    else if (chunk == a->pieces) {
        int stopped = ctcbind_await(&a->summed, a->blocks) < a->blocks || is_stopped(a, -1, 0);
        a->loss = stopped ? (double)NAN : a->run(a->s, a->extent, a->scratch, PHASE_PATHS, 0, 0, slot);
        if (!(a->loss < (double)INFINITY)) atomic_store_explicit(&a->back, INT_MAX, memory_order_release);
    } else {
        int gone = chunk - a->pieces, block = a->blocks - gone, through = ctcbind_await(&a->back, gone);
        if (through >= gone && through < INT_MAX && !is_stopped(a, slot, BLOCK * (int64_t)a->s->C))
            do_phase(a, PHASE_GRADIENT, block, block + 1, slot);
    }
    flush_end(mode);
}

size_t ctcbind_shared_bytes(int threads, int64_t T)
{
    size_t blocks = ((size_t)T + BLOCK - 1) / BLOCK;
    return (size_t)threads * sizeof(range_t) + (blocks * sizeof(atomic_int) + LINE - 1) / LINE * LINE;
}

/* 0 where it has to begin anew: see ctcbind_parallel. */
static int run_all(ctc_phase run, ctc_sample *s, const ctc_extent *extent, void *scratch, void *room, int threads,
                   int most, double *loss)
{
    shared_t a = {.run = run, .s = s, .extent = extent, .scratch = scratch, .threads = threads};
    a.pieces = (s->T + PIECE - 1) / PIECE;
    a.blocks = (s->T + BLOCK - 1) / BLOCK;
    a.ranges = room;
    a.missing = (atomic_int *)(a.ranges + threads);
    for (int64_t k = 0; k < threads; k++) {
        int64_t first = a.pieces * k / threads, end = a.pieces * (k + 1) / threads;
        atomic_init(&a.ranges[k].left, (uint64_t)first << 32 | (uint64_t)end);
    }
    for (int k = 0; k < a.blocks; k++)
        atomic_init(&a.missing[k], s->T - k * BLOCK < BLOCK ? s->T - k * BLOCK : BLOCK);
    atomic_init(&a.summed, 0);
    atomic_init(&a.back, 0);
    s->back = &a.back;
    do_phase(&a, PHASE_BEGIN, 0, 0, 0);
    int lost = ctcbind_parallel(threads, most, a.pieces + 1 + (s->g ? a.blocks : 0), run_chunk, &a);
    *loss = a.loss;
    return !lost;
}

double ctcbind_shared(ctc_phase run, ctc_sample *s, const ctc_extent *extent, void *scratch, void *room, int threads,
                      int most)
{
    double loss;
    if (!run_all(run, s, extent, scratch, room, threads, most, &loss))
        run_all(run, s, extent, scratch, room, 1, 0, &loss);
    return loss;
}
