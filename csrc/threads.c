/* The caller claims chunks like every worker and waits only for chunks that a worker has taken: a worker that is
 * slow to wake costs nothing. Nobody spins. Where the pool is in use, a second caller works alone. */
#define _POSIX_C_SOURCE 200809L /* sigset_t and pthread_sigmask under -std=c11 */
#include "threads.h"

#if defined(_WIN32)
void ctcbind_yield(void) {}

void ctcbind_parallel(int slots, int chunks, ctc_task task, void *arg)
{
    (void)slots;
    for (int i = 0; i < chunks; i++) task(arg, i, 0);
}
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

void ctcbind_yield(void) { sched_yield(); }

enum { MOST_WORKERS = 255 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    int workers;         /* started */
    int taken;           /* a caller owns the pool */
    int open, seats;     /* the job may still be joined, by this many more */
    int joined, active;  /* workers that joined it, and those not yet done */
    int chunks;
    ctc_task task;
    void *arg;
    atomic_int next;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};

/* A child of fork has the memory but none of the workers. */
static void after_fork(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.workers = pool.taken = pool.open = pool.active = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void claim(ctc_task task, void *arg, int chunks, int slot)
{
    for (int i; (i = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < chunks;) task(arg, i, slot);
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

void ctcbind_parallel(int slots, int chunks, ctc_task task, void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int helpers = (slots < chunks ? slots : chunks) - 1, mine = 0;
    if (helpers > 0) {
        pthread_once(&once, watch_forks);
        pthread_mutex_lock(&pool.lock);
        if (!pool.taken) {
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
    if (!mine) {
        for (int i = 0; i < chunks; i++) task(arg, i, 0);
        return;
    }
    if (helpers == 1) pthread_cond_signal(&pool.work);
    else pthread_cond_broadcast(&pool.work);
    claim(task, arg, chunks, 0);
    pthread_mutex_lock(&pool.lock);
    pool.open = 0;
    while (pool.active) pthread_cond_wait(&pool.idle, &pool.lock);
    pool.taken = 0;
    pthread_mutex_unlock(&pool.lock);
}
#endif
