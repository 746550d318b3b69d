/* What threads.c takes of the operating system: locks, threads and a clock, of POSIX or of Windows. */
#ifndef CTCBIND_SYSTEM_H
#define CTCBIND_SYSTEM_H

#include <stdint.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN /* the rest of its header takes common words for macros */
#define NOMINMAX
#include <float.h>
#include <windows.h>

typedef SRWLOCK ctc_lock;
typedef CONDITION_VARIABLE ctc_condition;
typedef INIT_ONCE ctc_once;
#define LOCK_INIT SRWLOCK_INIT
#define CONDITION_INIT CONDITION_VARIABLE_INIT
#define ONCE_INIT INIT_ONCE_STATIC_INIT

static inline void lock(ctc_lock *l) { AcquireSRWLockExclusive(l); }
static inline int try_lock(ctc_lock *l) { return TryAcquireSRWLockExclusive(l); }
static inline void unlock(ctc_lock *l) { ReleaseSRWLockExclusive(l); }
static inline void signal_one(ctc_condition *c) { WakeConditionVariable(c); }
static inline void signal_all(ctc_condition *c) { WakeAllConditionVariable(c); }
static inline void await_signal(ctc_condition *c, ctc_lock *l) { SleepConditionVariableSRW(c, l, INFINITE, 0); }

/* Whether no signal came in so many milliseconds. */
static inline int await_signal_for(ctc_condition *c, ctc_lock *l, int milliseconds)
{
    return !SleepConditionVariableSRW(c, l, (DWORD)milliseconds, 0);
}

typedef void (*ctc_first)(void);
static inline BOOL CALLBACK call_once(PINIT_ONCE o, PVOID f, PVOID *unused)
{
    (void)o, (void)unused;
    (*(ctc_first *)f)();
    return TRUE;
}
static inline void once(ctc_once *o, ctc_first f) { InitOnceExecuteOnce(o, call_once, &f, NULL); }

static inline void yield_thread(void) { SwitchToThread(); }
static inline void relax(void) { YieldProcessor(); }

static inline int64_t nanoseconds(void)
{
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    int64_t whole = now.QuadPart / second.QuadPart, rest = now.QuadPart % second.QuadPart;
    return whole * 1000000000 + rest * 1000000000 / second.QuadPart;
}

/* That the process may use, of its group of at most 64. */
static inline int processors(void)
{
    DWORD_PTR ours = 0, all;
    int found = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &ours, &all)) return 1;
    for (; ours; ours &= ours - 1) found++;
    return found;
}

#define THREAD_MAIN(name) static DWORD WINAPI name(LPVOID unused)

/* At the beginning of a thread: what MinGW's exp and log round to is the processor's x87 state, which Windows sets
 * otherwise than MinGW does for the first thread. */
static inline void begin_thread(void)
{
#if defined(__MINGW32__)
    _fpreset();
#endif
}

/* A thread that nobody waits for; whether there is one. */
static inline int start_thread(LPTHREAD_START_ROUTINE run)
{
    HANDLE thread = CreateThread(NULL, 0, run, NULL, 0, NULL);
    return thread && CloseHandle(thread);
}

#else
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef pthread_mutex_t ctc_lock;
typedef pthread_cond_t ctc_condition;
typedef pthread_once_t ctc_once;
#define LOCK_INIT PTHREAD_MUTEX_INITIALIZER
#define CONDITION_INIT PTHREAD_COND_INITIALIZER
#define ONCE_INIT PTHREAD_ONCE_INIT

static inline void lock(ctc_lock *l) { pthread_mutex_lock(l); }
static inline int try_lock(ctc_lock *l) { return !pthread_mutex_trylock(l); }
static inline void unlock(ctc_lock *l) { pthread_mutex_unlock(l); }
static inline void signal_one(ctc_condition *c) { pthread_cond_signal(c); }
static inline void signal_all(ctc_condition *c) { pthread_cond_broadcast(c); }
static inline void await_signal(ctc_condition *c, ctc_lock *l) { pthread_cond_wait(c, l); }

/* Whether no signal came in so many milliseconds, fewer than 1000. */
static inline int await_signal_for(ctc_condition *c, ctc_lock *l, int milliseconds)
{
    struct timespec until;
    timespec_get(&until, TIME_UTC);
    until.tv_nsec += milliseconds * 1000000L;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return pthread_cond_timedwait(c, l, &until) == ETIMEDOUT;
}

static inline void once(ctc_once *o, void (*f)(void)) { pthread_once(o, f); }

static inline void yield_thread(void) { sched_yield(); }

/* Lets the other thread of a core go on. */
static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* That the process may use. */
static inline int processors(void)
{
#if defined(__linux__)
    cpu_set_t ours;
    if (!sched_getaffinity(0, sizeof ours, &ours)) return CPU_COUNT(&ours);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

#define THREAD_MAIN(name) static void *name(void *unused)

static inline void begin_thread(void) {}

/* A thread that nobody waits for; whether there is one. */
static inline int start_thread(void *(*run)(void *))
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = !pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}
#endif

#endif
