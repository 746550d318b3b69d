/* The caller claims chunks like every worker and waits only for chunks that a worker has taken: a worker that is
 * slow to wake costs nothing. No worker spins. Where the pool is in use, a second caller works alone. Borrowed threads do
 * as their own library has it. */
#define _GNU_SOURCE /* for sigset_t, pthread_sigmask and syscall under -std=c11 */
#include "threads.h"

#if defined(_WIN32)
static void yield(void) {}
int ctcbind_awake(int slots) { return slots <= 1; }

void ctcbind_parallel(int slots, int chunks, ctc_task task, void *arg)
{
    (void)slots;
    for (int i = 0; i < chunks; i++) task(arg, i, 0);
}

void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside)
{
    (void)parallel, (void)number, (void)most, (void)inside;
}
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static void yield(void) { sched_yield(); }

enum { MOST_WORKERS = 255 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    int workers;         /* started */
    int taken;           /* a caller owns the pool */
    int open, seats;     /* the job may still be joined, by this many more */
    int joined;          /* workers that joined it */
    int chunks;
    ctc_task task;
    void *arg;
    atomic_int active;   /* of those that joined, the ones not yet done; written with the lock held */
    atomic_int next;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};

/* OpenMP's threads; guarded by the pool's lock. */
static struct {
    ctcbind_gomp_parallel parallel;
    ctcbind_omp_get number, most, inside;
} lent;

/* A child of fork has the memory but none of the workers, OpenMP's neither. */
static void after_fork(void)
{
    lent.parallel = NULL;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.workers = pool.taken = pool.open = 0;
    atomic_store(&pool.active, 0);
}

static void register_after_fork(void) { pthread_atfork(NULL, NULL, after_fork); }

static void watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_after_fork);
}

static void claim(ctc_task task, void *arg, int chunks, int slot)
{
    for (int i; (i = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < chunks;) task(arg, i, slot);
}

/* Waits a while for workers that are at their last chunks: to be put to sleep and woken takes longer than most chunks. */
static void linger(void)
{
    enum { SPINS = 2000, YIELDS = 200 };
    for (int k = 0; k < SPINS + YIELDS && atomic_load_explicit(&pool.active, memory_order_acquire); k++)
        if (k >= SPINS) yield();
}

static void *worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!(pool.open && pool.seats > 0)) pthread_cond_wait(&pool.work, &pool.lock);
        pool.seats--;
        int slot = ++pool.joined, chunks = pool.chunks;
        pool.active++;
        ctc_task task = pool.task;
        void *arg = pool.arg;
        pthread_mutex_unlock(&pool.lock);
        claim(task, arg, chunks, slot);
        pthread_mutex_lock(&pool.lock);
        pool.open = 0; /* every chunk is taken */
        if (--pool.active == 0) pthread_cond_signal(&pool.idle);
    }
    return NULL;
}

typedef struct {
    ctc_task task;
    void *arg;
    int chunks, slots;
    atomic_int companion;
} crew_t;

/* A thread that OpenMP has given to the work of this one, by the kernel's number; 0 where that is not known yet. */
static _Thread_local int companion;

static void work_along(void *arg)
{
    crew_t *crew = arg;
    int slot = lent.number(); /* 0 is the caller */
#if defined(__linux__)
    if (slot == 1) atomic_store_explicit(&crew->companion, (int)syscall(SYS_gettid), memory_order_relaxed);
#endif
    if (slot < crew->slots) claim(crew->task, crew->arg, crew->chunks, slot);
}

/* Whether OpenMP's threads look out for work: one that sleeps would be waited for, for milliseconds. Asked of the clock
 * of the companion's processor time, which stands still in its sleep. */
static int awake(void)
{
    if (!companion) return 1;
    clockid_t clock = (clockid_t)(~(unsigned)companion << 3 | 6); /* so the kernel names it */
    struct timespec before, after;
    if (clock_gettime(clock, &before) || clock_gettime(clock, &after)) return 1; /* gone, and another in its place */
    return before.tv_nsec != after.tv_nsec || before.tv_sec != after.tv_sec;
}

/* Called with the lock held. */
static int may_borrow(int slots)
{
    return !pool.taken && lent.parallel && !lent.inside() && lent.most() == slots && awake();
}

int ctcbind_awake(int slots)
{
    if (slots <= 1) return 1;
    watch_forks(); /* whoever takes the lock, lest a child find it taken */
    pthread_mutex_lock(&pool.lock);
    int lend = may_borrow(slots);
    pthread_mutex_unlock(&pool.lock);
    return lend;
}

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
    sigset_t all, before;
    if (count > MOST_WORKERS) count = MOST_WORKERS;
    if (pool.workers >= count) return;
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL)) break;
        pthread_detach(thread);
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside)
{
    watch_forks();
    pthread_mutex_lock(&pool.lock);
    lent.parallel = parallel;
    lent.number = number;
    lent.most = most;
    lent.inside = inside;
    pthread_mutex_unlock(&pool.lock);
}

void ctcbind_parallel(int slots, int chunks, ctc_task task, void *arg)
{
    int helpers = (slots < chunks ? slots : chunks) - 1, mine = 0, borrowed = 0;
    if (helpers > 0) {
        watch_forks();
        pthread_mutex_lock(&pool.lock);
        if (may_borrow(helpers + 1)) {
            borrowed = pool.taken = 1;
            atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
        } else if (!pool.taken) {
            start_workers(helpers);
            mine = pool.taken = 1;
            pool.task = task;
            pool.arg = arg;
            pool.chunks = chunks;
            pool.seats = helpers;
            pool.joined = 0;
            atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
            pool.open = 1;
        }
        pthread_mutex_unlock(&pool.lock);
    }
    if (borrowed) {
        run_borrowed(helpers + 1, chunks, task, arg);
        pthread_mutex_lock(&pool.lock);
        pool.taken = 0;
        pthread_mutex_unlock(&pool.lock);
        return;
    }
    if (!mine) {
        for (int i = 0; i < chunks; i++) task(arg, i, 0);
        return;
    }
    if (helpers == 1) pthread_cond_signal(&pool.work);
    else pthread_cond_broadcast(&pool.work);
    claim(task, arg, chunks, 0);
    pthread_mutex_lock(&pool.lock);
    pool.open = 0;
    if (pool.active) {
        pthread_mutex_unlock(&pool.lock);
        linger();
        pthread_mutex_lock(&pool.lock);
    }
    while (pool.active) pthread_cond_wait(&pool.idle, &pool.lock);
    pool.taken = 0;
    pthread_mutex_unlock(&pool.lock);
}
#endif

int ctcbind_await(atomic_int *value, int wanted)
{
    enum { SPINS = 2000 };
    for (int k = 0;; k++) {
        int now = atomic_load_explicit(value, memory_order_acquire);
        if (now >= wanted) return now;
        if (k > SPINS) yield();
    }
}
