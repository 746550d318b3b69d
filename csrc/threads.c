/* The caller claims chunks like every worker, and waits only for chunks that a worker has taken: one that is slow to
 * wake costs nothing. After a call workers sleep; where calls follow each other closely they look out for the next call
 * before that, for as long as WATCH. A second caller works alone while the pool is in use. Threads borrowed from OpenMP
 * wait the way OpenMP has them wait. */
#define _GNU_SOURCE /* for sigset_t, pthread_sigmask and syscall under -std=c11 */
#include "system.h"
#include "threads.h"

#if defined(__linux__)
#include <sys/syscall.h>
#endif

static PER_THREAD ctcbind_waiter waiting;

/* Whether this thread is the caller of the pool's job, and whether it is so in a child that lacks its workers. */
static PER_THREAD int calls, orphaned;

ctcbind_waiter ctcbind_wait_with(ctcbind_waiter waiter)
{
    ctcbind_waiter before = waiting;
    waiting = waiter;
    return before;
}

enum { MOST_WORKERS = MOST_THREADS - 1 };

/* Nanoseconds. */
#define WATCH 50000       /* about as long as it takes to put a thread to sleep and to wake it */
#define STUCK 1000000     /* a thread that takes so much longer than the others is kept waiting by other programs */
#define VAIN 10000000     /* and so is one that does not come to any job in this time: schedulers look more often */
#define CROWDED 100000000 /* for so long after either no thread looks out for work */

static struct {
    ctc_lock lock;
    ctc_condition work, idle;
    int workers;         /* started so far */
    int processors;      /* that the process may use */
    int taken;           /* a caller has the pool */
    int open, seats;     /* the job may still be joined, by this many more */
    int joined;          /* workers that have joined it */
    int follows;         /* the job came just after another, so that the next may too */
    int64_t vain;        /* since when no worker has come to such jobs; 0 where one came to the last */
    int watching;        /* workers that look out for a job */
    atomic_int jobs;     /* opened so far */
    /* When the last call ended, and when a thread was waited for that other programs did not let run. */
    atomic_llong left, crowded;
    int chunks;
    ctc_task task;
    void *arg;
    atomic_int active;   /* workers that have joined and are not done; written with the lock held */
    atomic_int next;
} pool = {.lock = LOCK_INIT, .work = CONDITION_INIT, .idle = CONDITION_INIT};

/* OpenMP's threads; guarded by the pool's lock. */
static struct {
    ctcbind_gomp_parallel parallel;
    ctcbind_omp_get number, most, inside;
} lent;

#if !defined(_WIN32)
/* A child of fork has the memory but none of the workers, OpenMP's neither. */
static void after_fork(void)
{
    lent.parallel = NULL;
    orphaned |= calls && pool.joined;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.workers = pool.taken = pool.open = pool.watching = 0;
    atomic_store(&pool.active, 0);
}
#endif

static void prepare_once(void)
{
#if !defined(_WIN32)
    pthread_atfork(NULL, NULL, after_fork);
#endif
    pool.processors = processors();
}

static void prepare(void)
{
    static ctc_once prepared = ONCE_INIT;
    once(&prepared, prepare_once);
}

static void claim(ctc_task task, void *arg, int chunks, int slot)
{
    for (int i; !orphaned && (i = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < chunks;)
        task(arg, i, slot);
}

/* Spins for workers that are at their last chunks: to sleep and be woken takes longer than most chunks. */
static void linger(void)
{
    enum { SPINS = 2000, YIELDS = 200 };
    for (int k = 0; k < SPINS + YIELDS && atomic_load_explicit(&pool.active, memory_order_acquire); k++)
        if (k >= SPINS) yield_thread();
}

/* Notes that the machine is crowded, if a thread has been waited for since then for more than `most`. */
static void crowded(int64_t since, int64_t most)
{
    int64_t now = nanoseconds();
    if (now - since > most) atomic_store_explicit(&pool.crowded, now, memory_order_relaxed);
}

/* Whether a call comes just after another, so that workers had better look out for the next. Not on a crowded machine:
 * there a thread that has slept is let run sooner than one that has spun. */
static int follows(void)
{
    int64_t now = nanoseconds();
    return pool.workers < pool.processors &&
           now - atomic_load_explicit(&pool.left, memory_order_relaxed) < WATCH &&
           now - atomic_load_explicit(&pool.crowded, memory_order_relaxed) > CROWDED;
}

/* Whether a job comes within WATCH. */
static int look_out(int jobs)
{
    int64_t end = nanoseconds() + WATCH;
    do {
        for (int k = 0; k < 10; k++) {
            if (atomic_load_explicit(&pool.jobs, memory_order_acquire) != jobs) return 1;
            relax();
        }
    } while (nanoseconds() < end);
    return 0;
}

/* Takes the lock by trying: it is held for moments only, and to sleep for it would take longer. */
static void lock_soon(void)
{
    enum { TRIES = 1000 };
    for (int k = 0; k < TRIES; k++)
        if (try_lock(&pool.lock)) return;
    lock(&pool.lock);
}

static void wait_for_work(int watch)
{
    while (!(pool.open && pool.seats > 0)) {
        if (!watch) {
            await_signal(&pool.work, &pool.lock);
            watch = pool.follows; /* if this job is taken already, the next may follow */
            continue;
        }
        int jobs = atomic_load_explicit(&pool.jobs, memory_order_relaxed);
        pool.watching++;
        unlock(&pool.lock);
        watch = look_out(jobs);
        lock_soon();
        pool.watching--;
    }
}

THREAD_MAIN(worker)
{
    (void)unused;
    begin_thread();
    lock(&pool.lock);
    for (int watch = 0;;) {
        wait_for_work(watch);
        pool.seats--;
        int slot = ++pool.joined, chunks = pool.chunks;
        watch = pool.follows;
        pool.active++;
        ctc_task task = pool.task;
        void *arg = pool.arg;
        unlock(&pool.lock);
        claim(task, arg, chunks, slot);
        lock(&pool.lock);
        pool.open = 0; /* every chunk is taken */
        if (--pool.active == 0) signal_one(&pool.idle);
    }
    return 0;
}

typedef struct {
    ctc_task task;
    void *arg;
    int chunks, slots;
    atomic_int companion;
} crew_t;

/* A thread that OpenMP has given to the work of this one, by the kernel's number; 0 where that is not known yet. */
static PER_THREAD int companion;

static void work_along(void *arg)
{
    crew_t *crew = arg;
    int slot = lent.number(); /* 0 is the caller */
#if defined(__linux__)
    if (slot == 1) atomic_store_explicit(&crew->companion, (int)syscall(SYS_gettid), memory_order_relaxed);
#endif
    if (slot < crew->slots) claim(crew->task, crew->arg, crew->chunks, slot);
}

/* Whether OpenMP's threads are spinning: one that sleeps would be waited for, for milliseconds. The companion's clock
 * of processor time tells, which stands still while it sleeps. */
static int awake(void)
{
#if defined(__linux__)
    if (!companion) return 1;
    clockid_t clock = (clockid_t)(~(unsigned)companion << 3 | 6); /* the kernel's name for it */
    struct timespec before, after;
    if (clock_gettime(clock, &before) || clock_gettime(clock, &after)) return 1; /* gone, and another in its place */
    return before.tv_nsec != after.tv_nsec || before.tv_sec != after.tv_sec;
#else
    return 1;
#endif
}

/* Called with the lock held. */
static int may_borrow(int slots)
{
    return !pool.taken && lent.parallel && !lent.inside() && lent.most() == slots && awake();
}

int ctcbind_awake(int slots)
{
    if (slots <= 1) return 1;
    prepare(); /* before any use of the lock, or a child of fork might find it locked */
    lock(&pool.lock);
    int lend = may_borrow(slots) || (!pool.taken && follows());
    unlock(&pool.lock);
    return lend;
}

void ctcbind_left(void) { atomic_store_explicit(&pool.left, nanoseconds(), memory_order_relaxed); }

static void run_borrowed(int slots, int chunks, ctc_task task, void *arg)
{
    crew_t crew = {.task = task, .arg = arg, .chunks = chunks, .slots = slots};
    atomic_init(&crew.companion, 0);
    lent.parallel(work_along, &crew, (unsigned)slots, 0);
    companion = atomic_load_explicit(&crew.companion, memory_order_relaxed);
}

/* Called with the lock held. */
static void start_workers(int count)
{
    if (count > MOST_WORKERS) count = MOST_WORKERS;
    while (pool.workers < count && start_thread(worker)) pool.workers++;
}

void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside)
{
    prepare();
    lock(&pool.lock);
    lent.parallel = parallel;
    lent.number = number;
    lent.most = most;
    lent.inside = inside;
    unlock(&pool.lock);
}

/* Called with the lock held, which is released while it asks. */
static void wait_for_idle(void)
{
    if (!waiting.ask) {
        await_signal(&pool.idle, &pool.lock);
        return;
    }
    if (!await_signal_for(&pool.idle, &pool.lock, 50)) return;
    unlock(&pool.lock);
    waiting.ask(waiting.arg);
    lock(&pool.lock);
}

int ctcbind_parallel(int slots, int most, int chunks, ctc_task task, void *arg)
{
    int helpers = (slots < chunks ? slots : chunks) - 1, mine = 0, borrowed = 0, asleep = 0;
    int outer_calls = calls, outer_orphaned = orphaned; /* a handler may have a job of its own in such a child */
    if (helpers > 0) {
        prepare();
        lock(&pool.lock);
        if (may_borrow(helpers + 1)) {
            borrowed = pool.taken = 1;
            atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
        } else if (!pool.taken) {
            helpers = helpers < most ? helpers : most;
            start_workers(helpers);
            mine = pool.taken = calls = 1;
            orphaned = 0;
            asleep = helpers > pool.watching; /* those that look out see the job, before they sleep at the latest */
            pool.task = task;
            pool.arg = arg;
            pool.chunks = chunks;
            pool.seats = helpers;
            pool.joined = 0;
            pool.follows = follows();
            atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
            pool.open = 1;
        }
        unlock(&pool.lock);
        if (mine) atomic_fetch_add_explicit(&pool.jobs, 1, memory_order_release);
    }
    if (borrowed) {
        run_borrowed(helpers + 1, chunks, task, arg);
        lock(&pool.lock);
        pool.taken = 0;
        unlock(&pool.lock);
        return 0;
    }
    if (!mine) {
        for (int i = 0; i < chunks; i++) task(arg, i, 0);
        return 0;
    }
    if (asleep && helpers == 1) signal_one(&pool.work);
    else if (asleep) signal_all(&pool.work);
    claim(task, arg, chunks, 0);
    lock(&pool.lock);
    pool.open = 0;
    if (pool.active) {
        unlock(&pool.lock);
        linger();
        lock(&pool.lock);
    }
    int vain = pool.follows && !pool.joined;
    int64_t since = vain || pool.active ? nanoseconds() : 0;
    while (pool.active) wait_for_idle();
    pool.vain = !vain ? 0 : pool.vain ? pool.vain : since;
    if (since) crowded(vain ? pool.vain : since, vain ? VAIN : STUCK);
    pool.taken = 0;
    unlock(&pool.lock);
    ctcbind_left();
    int lost = orphaned;
    calls = outer_calls;
    orphaned = outer_orphaned;
    return lost;
}

int ctcbind_await(atomic_int *value, int wanted)
{
    enum { SPINS = 2000 };
    int64_t since = 0;
    for (int k = 0;; k++) {
        int now = atomic_load_explicit(value, memory_order_acquire);
        if (now >= wanted || orphaned) {
            if (since) crowded(since, STUCK);
            return now;
        }
        if (k == SPINS) since = nanoseconds();
        if (k <= SPINS) continue;
        yield_thread();
        if (waiting.ask) waiting.ask(waiting.arg);
    }
}
