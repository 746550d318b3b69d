/* The batch: who computes which samples, and in which memory. */
#include "ctcbind.h"

#include <stdlib.h>

#include "flush.h"
#include "kernel.h"
#include "shared.h"
#include "size.h"
#include "stop.h"
#include "threads.h"

enum { LINE = 64 };

/* Limits on work, all in nanoseconds as work_of estimates them. In a call with less than this no thread is woken,
 * as it would come too late, unless calls follow each other closely (ctcbind_awake). */
#define WORTH_WAKING 150e3
/* A thread that is awake already takes part in a call of this much, and no more are woken than one for each so much. */
#define WORTH_THREAD 20e3
/* A call of this much asks now and then whether to stop: between samples, and within those that take a tenth of it. */
#ifndef WORTH_STOPPING
#define WORTH_STOPPING 20e6
#endif
/* A sample of this much is taken in halves, in a batch of up to FEW samples. In a larger batch it has to be longer, in
 * proportion: many samples keep threads busy as they are. The number of threads has no say in this, so that results do
 * not depend on it. */
#ifndef WORTH_HALVING
#define WORTH_HALVING 60e3
#endif
#define FEW 4
/* Gradients of more bytes than this are written past the cache. */
#ifndef WORTH_STREAMING
#define WORTH_STREAMING ((size_t)8 << 20)
#endif

/* At most so many bytes are spent on keeping what could be computed again. */
#ifndef MOST_KEPT
#define MOST_KEPT 448e3
#endif

typedef struct {
    ctc_extent extent;
    int slots, chunks, per_chunk;
    int most; /* how many threads beside the caller's are worth waking */
    int ask;  /* long enough to ask whether to stop */
    int wake; /* long enough to wake threads that sleep */
    int stepped; /* threads share samples in halves, step by step, and each sample has scratch of its own */
    /* Bytes: of label offsets; of one thread's scratch, and all threads'; of what they share; of everything. */
    uint64_t offsets, one, scratch, room, total;
} plan_t;

typedef struct {
    const ctcbind_problem *p;
    const plan_t *plan;
    const ctc_kernel *kernel;
    const int64_t *offsets;
    unsigned char *scratch;
    void *room;        /* of a split sample: what its threads share; with halves: how many steps of each are done */
    int front;         /* chunks that the calling thread has taken, from the first on */
    atomic_int back;   /* chunks that the others have taken, from the last on */
    ctcbind_question question;
} batch_t;

static int valid(const ctcbind_problem *p)
{
    return p->T >= 0 && p->N >= 0 && p->C > 0 && p->blank >= 0 && p->blank < p->C && p->dtype >= 0 && p->dtype <= 3
           && p->topology >= 0 && p->topology <= 1;
}

/* Nanoseconds from T rows to a loss, roughly: with AVX-512 it takes half as long, or less. */
static double work_of(int64_t T, int64_t L, int64_t C)
{
    return (double)T * (15 + 0.4 * (double)C + 0.4 * (double)L);
}

/* Where rows are long and labels few, the rows are what threads share. */
static int shares_rows(int64_t L, int64_t C) { return C > 512 && C > 4 * L; }

/* Whether it takes less time if all threads share one sample after the other, though its paths are one thread's, than
 * if each takes one, and some a second while the others wait. In nanoseconds a row. */
static int worth_sharing(int64_t N, int threads, int64_t L, int64_t C)
{
    double rows = 0.4 * (double)C, paths = 60 + 1.2 * (double)L;
    if (N >= 2 * threads) return 0;
    return (double)N * (rows / threads + paths) < (N > threads ? 2 : 1) * (rows + paths);
}

static int is_halved(const ctcbind_problem *p, int64_t T, int64_t L)
{
    double worth = WORTH_HALVING * (p->N > FEW ? (double)p->N / FEW : 1);
    return T >= 2 * BLOCK && work_of(T, L, p->C) >= worth && !shares_rows(L, p->C);
}

static int passes_by_the_cache(const ctcbind_problem *p)
{
    return (size_t)p->T * (size_t)p->N * (size_t)p->C * ctcbind_bytes_of(p->dtype) > WORTH_STREAMING;
}

/* Whether all classes are worth a column each: where there are few, or many are used. A column of doubles takes twice
 * the room in the cache. Not whether a gradient is wanted: losses are the same without. */
static int is_dense(const ctcbind_problem *p, int64_t L)
{
    int doubles = p->dtype == CTCBIND_FLOAT64, few_used = 4 * L < p->C;
    if (p->C <= (doubles ? 96 : 128)) return 1;
    return p->C <= (doubles ? (few_used ? 96 : 128) : (few_used ? 192 : MOST_DENSE)) && !passes_by_the_cache(p);
}

/* What the longest sample asks for. Returns the work of all. */
static double measure(const ctcbind_problem *p, ctc_extent *e)
{
    double work = 0;
    e->T = e->L = 0;
    e->halved = 0;
    for (int32_t n = 0; n < p->N; n++) {
        int64_t T = p->input_lengths[n], L = p->label_lengths[n];
        if (T > e->T) e->T = T;
        if (L > e->L) e->L = L;
        work += work_of(T, L, p->C);
        e->halved |= is_halved(p, T, L);
    }
    e->C = p->C;
    e->grad = p->grad != NULL;
    e->dtype = p->dtype;
    e->strided = p->logits_c == 1 || p->C <= 1 ? 0 : closer(p->logits_t, p->logits_c) ? BLOCK : 1;
    e->dense = is_dense(p, e->L);
    int direct = ctcbind_bytes_of(p->dtype) >= sizeof(float) && p->logits_c == 1 && p->grad_c == 1;
    e->rooms = e->grad && !e->dense && (!direct || passes_by_the_cache(p));
    return e->grad ? 2.5 * work : work;
}

/* How many samples a thread takes at once: where rows are short, neighbours share cache lines, and stay on one. */
static int samples_per_chunk(const ctcbind_problem *p, int threads)
{
    int least = (size_t)p->C * ctcbind_bytes_of(p->dtype) < 16 * LINE ? 4 : 1;
    if (least > p->N / threads) least = p->N / threads > 1 ? p->N / threads : 1;
    int even = threads > 1 ? p->N / (threads * 8) : p->N;
    return even > least ? even : least;
}

/* What would have to be computed twice is kept, as far as that stays in the cache and is small beside the batch. */
static size_t worth_keeping(const ctcbind_problem *p, const ctc_extent *e, int slots)
{
    double room = (double)p->N * (double)e->T / slots;
    room *= e->dense ? 0.27 * (p->C + 2 * (double)e->L + 1) : 0.012 * p->C * (double)ctcbind_bytes_of(p->dtype);
    if (e->dense && room < 128e3) room = 128e3;
    return e->split ? 0 : (size_t)(room < MOST_KEPT ? room : MOST_KEPT);
}

static void make_plan(const ctcbind_problem *p, const ctc_kernel *kernel, plan_t *plan)
{
    ctc_extent *e = &plan->extent;
    double work = measure(p, e);
    plan->ask = p->stop && work >= WORTH_STOPPING;
    plan->wake = work >= WORTH_WAKING;
    plan->most = (int)(work < 1e6 * WORTH_THREAD ? work / WORTH_THREAD : 1e6);

    int threads = p->threads > 1 && work >= WORTH_THREAD ? p->threads : 1;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    plan->per_chunk = samples_per_chunk(p, threads);
    plan->chunks = (p->N + plan->per_chunk - 1) / plan->per_chunk;
    plan->slots = threads < plan->chunks ? threads : plan->chunks;
    if (plan->slots < 1) plan->slots = 1;
    e->split = threads > 1 && shares_rows(e->L, p->C) && e->T >= 2 * BLOCK &&
               worth_sharing(p->N, threads, e->L, p->C) ? threads : 0;
    e->keep = worth_keeping(p, e, plan->slots);
    /* With fewer samples than threads, or so few that all would wait for the last one, threads share halves. */
    plan->stepped = e->halved && !e->split && threads > 1 && p->N < 2 * threads;

    plan->one = p->dtype == CTCBIND_FLOAT64 ? kernel->bytes64(e) : kernel->bytes32(e);
    plan->offsets = ((uint64_t)p->N * sizeof(int64_t) + LINE - 1) / LINE * LINE;
    plan->room = e->split        ? ctcbind_shared_bytes(threads, e->T)
                 : plan->stepped ? (uint64_t)p->N * sizeof(atomic_int)
                                 : 0;
    plan->scratch = (uint64_t)(plan->stepped ? p->N : e->split ? 1 : plan->slots) * plan->one;
    plan->total = plan->offsets + plan->scratch + plan->room + LINE;
    if (e->split) plan->slots = e->split;
    if (plan->stepped) plan->slots = threads < 2 * p->N ? threads : 2 * p->N;
}

static ctc_sample sample_of(batch_t *b, int32_t n, int slot)
{
    const ctcbind_problem *p = b->p;
    size_t size = ctcbind_bytes_of(p->dtype);
    ctc_sample s;
    s.x = (const char *)p->logits + n * p->logits_n * (int64_t)size;
    s.g = p->grad ? (char *)p->grad + n * p->grad_n * (int64_t)size : NULL;
    s.x_t = p->logits_t;
    s.x_c = p->C > 1 ? p->logits_c : 1;
    s.g_t = p->grad_t;
    s.g_c = p->C > 1 ? p->grad_c : 1;
    s.labels = p->labels + b->offsets[n];
    s.L = p->label_lengths[n];
    s.T = s.all = p->input_lengths[n];
    s.rows = p->T;
    s.C = p->C;
    s.blank = p->blank;
    s.dtype = p->dtype;
    s.simple = p->topology == CTCBIND_TOPOLOGY_SIMPLE;
    s.weight = p->weights ? p->weights[n] : 1;
    s.halved = is_halved(p, s.T, s.L);
    s.stream = passes_by_the_cache(p);
    s.back = NULL;
    s.question = b->plan->ask && 10 * work_of(s.T, s.L, s.C) >= WORTH_STOPPING ? &b->question : NULL;
    s.slot = slot;
    return s;
}

static void put_loss(const ctcbind_problem *p, int32_t n, double loss)
{
    if (p->dtype == CTCBIND_FLOAT64) ((double *)p->losses)[n] = loss;
    else ((float *)p->losses)[n] = (float)loss;
}

/* The caller takes chunks from the first on, others from the last: neighbours share cache lines, and the next call
 * finds them in the same thread's cache. */
static void run_chunk(void *arg, int claimed, int slot)
{
    batch_t *b = arg;
    const ctcbind_problem *p = b->p;
    int chunk = slot == 0 ? b->front++ : b->plan->chunks - 1 - atomic_fetch_add(&b->back, 1);
    (void)claimed; /* only how many are claimed counts, which is no more than there are */
    int32_t first = chunk * b->plan->per_chunk, end = first + b->plan->per_chunk;
    for (int32_t n = first; n < end && n < p->N && !ctcbind_stopped(&b->question, slot); n++) {
        ctc_sample s = sample_of(b, n, slot);
        void *scratch = b->scratch + (uint64_t)slot * b->plan->one;
        unsigned mode = flush_begin();
        double loss = p->dtype == CTCBIND_FLOAT64 ? b->kernel->sample64(&s, &b->plan->extent, scratch)
                                                  : b->kernel->sample32(&s, &b->plan->extent, scratch);
        flush_end(mode);
        put_loss(p, n, loss);
    }
}

static int run_split(batch_t *b)
{
    const ctcbind_problem *p = b->p;
    ctc_phase run = p->dtype == CTCBIND_FLOAT64 ? b->kernel->phase64 : b->kernel->phase32;
    for (int32_t n = 0; n < p->N && !ctcbind_stopped(&b->question, 0); n++) {
        ctc_sample s = sample_of(b, n, 0);
        const plan_t *plan = b->plan;
        put_loss(p, n, ctcbind_shared(run, &s, &plan->extent, b->scratch, b->room, plan->slots, plan->most));
    }
    return 0; /* a sample that has to be done anew has been */
}

/* Samples in halves: the first step of each sample, then the second of each, and so on. Chunks are claimed in order,
 * so that what a step waits for is always at work or done. */
static void run_step(void *arg, int chunk, int slot)
{
    static const int after[STEPS] = {0, 0, 2, 3, 3, 5, 6, 6}; /* how many must be done before */
    batch_t *b = arg;
    const ctcbind_problem *p = b->p;
    int step = chunk / p->N, n = chunk % p->N;
    atomic_int *done = (atomic_int *)b->room + n;
    if (ctcbind_await(done, after[step]) >= after[step] && !ctcbind_stopped(&b->question, slot)) {
        ctc_sample s = sample_of(b, n, slot);
        void *scratch = b->scratch + (uint64_t)n * b->plan->one;
        ctc_step run = p->dtype == CTCBIND_FLOAT64 ? b->kernel->step64 : b->kernel->step32;
        unsigned mode = flush_begin();
        double loss = run(&s, &b->plan->extent, scratch, step);
        flush_end(mode);
        if (step == STEP_MEET_AGAIN) put_loss(p, n, loss);
    }
    atomic_fetch_add_explicit(done, 1, memory_order_acq_rel);
}

static int run_stepped(batch_t *b)
{
    int32_t N = b->p->N;
    for (int32_t n = 0; n < N; n++) atomic_init((atomic_int *)b->room + n, 0);
    return ctcbind_parallel(b->plan->slots, b->plan->most, STEPS * N, run_step, b);
}

static int run_chunks(batch_t *b)
{
    b->front = 0;
    atomic_store_explicit(&b->back, 0, memory_order_relaxed);
    return ctcbind_parallel(b->plan->slots, b->plan->most, b->plan->chunks, run_chunk, b);
}

size_t ctcbind_workspace_size(const ctcbind_problem *p)
{
    const ctc_kernel *kernel = ctcbind_kernel();
    plan_t plan;
    if (!kernel->bytes32 || !valid(p)) return 0;
    make_plan(p, kernel, &plan);
    return ctcbind_size(plan.total);
}

void *ctcbind_workspace_new(size_t bytes) { return malloc(bytes ? bytes : 1); }
void ctcbind_workspace_free(void *workspace) { free(workspace); }

int ctcbind_loss(const ctcbind_problem *p, void *workspace, size_t workspace_bytes)
{
    const ctc_kernel *kernel = ctcbind_kernel();
    plan_t plan;
    batch_t batch = {.p = p, .plan = &plan, .kernel = kernel};
    void *own = NULL;
    if (!kernel->bytes32 || !valid(p)) return CTCBIND_INVALID;
    if (p->N == 0) return CTCBIND_OK;
    make_plan(p, kernel, &plan);
    if (workspace && workspace_bytes < plan.total) return CTCBIND_SMALL;
    if (!workspace) {
        own = workspace = malloc(ctcbind_size(plan.total));
        if (!workspace) return CTCBIND_NO_MEMORY;
    }
    unsigned char *base = (unsigned char *)(((uintptr_t)workspace + LINE - 1) / LINE * LINE);
    int64_t *offsets = (int64_t *)base, at = 0;
    for (int32_t n = 0; n < p->N; n++) {
        offsets[n] = at;
        at += p->label_lengths[n];
    }
    batch.offsets = offsets;
    batch.scratch = base + plan.offsets;
    ctcbind_may_stop(&batch.question, plan.ask ? p->stop : NULL);
    int shared = plan.slots > 1;
    if (shared && !plan.wake && !ctcbind_awake(plan.slots)) plan.slots = 1;
    batch.room = batch.scratch + plan.scratch;
    ctcbind_waiter before = {NULL, NULL};
    if (plan.ask) before = ctcbind_wait_with((ctcbind_waiter){ctcbind_ask_meanwhile, &batch.question});
    int (*run)(batch_t *b) = plan.extent.split ? run_split : plan.stepped ? run_stepped : run_chunks;
    if (run(&batch)) {
        plan.slots = 1;
        run(&batch);
    }
    if (plan.ask) ctcbind_wait_with(before);
    if (shared && plan.slots == 1) ctcbind_left();
    free(own);
    return ctcbind_stopped(&batch.question, -1) ? CTCBIND_STOPPED : CTCBIND_OK;
}
