/* CUDA's threads, barriers, shuffles and atomics on the host, for the kernels of ctcbind/cuda/kernels as they stand.
 *
 * A block's threads are fibres that take turns wherever they meet (the order of the turns is drawn, so that what relies
 * on a barrier that is not there goes wrong), or, with EMULATE_BY_THREADS, threads, for ThreadSanitizer. Blocks run one
 * after the other or, every fourth time, three at once, and begin in orders of that kind too, so that what relies on
 * one goes wrong. Subnormal floats are 0, as on a device. A barrier that some threads of a warp or block do not reach,
 * or reach at another operation, ends the launch with a message. Shared memory begins as rubbish and is allocated as
 * large as was asked for. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#ifdef EMULATE_BY_THREADS
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#undef __global__ /* where CUDA's own headers were read before */
#undef __device__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace emulator {

struct Index {
    unsigned x, y, z;
};
typedef void (*Body)(void *arguments);
enum { WARP_LANES = 32, STACK = 1 << 16 };

/* How many blocks run at once: of others' kernels, whose shared memory may be static, never more than one. */
static unsigned at_once([[maybe_unused]] unsigned seed)
{
#if defined EMULATE_ANY_BLOCK
    return 1;
#elif defined EMULATE_BY_THREADS
    return 3;
#else
    return seed % 4 == 3 ? 3 : 1;
#endif
}

struct Block;

/* Where threads wait for each other. `what` names the operation: all must have come for the same. */
struct Meeting {
    int expected = 0, arrived = 0;
    unsigned turn = 0;
    const char *what = nullptr;
    unsigned char values[2][WARP_LANES][16]; /* of a shuffle; the next one may begin before all have read */
#ifdef EMULATE_BY_THREADS
    pthread_barrier_t barrier;
#endif
};

struct Thread {
    Index index{};
    Block *block = nullptr;
    Meeting *warp = nullptr;
    unsigned turns = 0; /* shuffles so far */
    bool done = false, naps = false;
    Meeting *waits = nullptr;
    unsigned waits_turn = 0;
#ifndef EMULATE_BY_THREADS
    void *stack_pointer = nullptr;
    std::unique_ptr<unsigned char[]> stack;
#endif
};

struct Block {
    Index index{}, size{}, grid{};
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<Thread> threads;
    unsigned char *shared = nullptr;
    Body body = nullptr;
    void *arguments = nullptr;
    std::string error;
};

static unsigned draw(unsigned &state) { return (state = state * 1664525u + 1013904223u) >> 8; }

/* 0, 1, ..., count - 1; from the last to the first; or as drawn. */
static std::vector<unsigned> order_of(unsigned count, unsigned seed)
{
    std::vector<unsigned> order(count);
    unsigned state = seed * 2654435761u + 54321;
    for (unsigned i = 0; i < count; i++) order[i] = seed == 1 ? count - 1 - i : i;
    if (seed > 1)
        for (unsigned i = count; i > 1; i--) std::swap(order[i - 1], order[draw(state) % i]);
    return order;
}

#ifdef EMULATE_BY_THREADS
static thread_local Thread *self;

static inline void meet(Meeting &at, const char *) { pthread_barrier_wait(&at.barrier); }
static inline void nap() { sched_yield(); }

static void *enter(void *thread)
{
    self = (Thread *)thread;
    self->block->body(self->block->arguments);
    return nullptr;
}

static void run_blocks(std::vector<Block> &blocks, unsigned)
{
    std::vector<pthread_t> threads;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    for (Block &b : blocks) {
        pthread_barrier_init(&b.all.barrier, nullptr, b.size.x);
        for (Meeting &warp : b.warps) pthread_barrier_init(&warp.barrier, nullptr, WARP_LANES);
    }
    for (Block &b : blocks)
        for (Thread &thread : b.threads) {
            threads.emplace_back();
            if (pthread_create(&threads.back(), &attributes, enter, &thread)) abort();
        }
    for (pthread_t each : threads) pthread_join(each, nullptr);
    pthread_attr_destroy(&attributes);
    for (Block &b : blocks) {
        for (Meeting &warp : b.warps) pthread_barrier_destroy(&warp.barrier);
        pthread_barrier_destroy(&b.all.barrier);
    }
}
#else
static Thread *self;
static void *scheduler_stack;

#if defined(__x86_64__)
/* Leaves one stack for another; the callee-saved registers lie on the stack that is left. */
__asm__(".text\n.type emulator_switch,@function\nemulator_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulator_switch,.-emulator_switch\n");
extern "C" void emulator_switch(void **from, void *to) __asm__("emulator_switch");
enum { SAVED_WORDS = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.type emulator_switch,%function\nemulator_switch:\n"
        "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
        "stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
        "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n"
        ".size emulator_switch,.-emulator_switch\n");
extern "C" void emulator_switch(void **from, void *to) __asm__("emulator_switch");
#else
#error "this emulator knows the stacks of x86-64 and aarch64"
#endif

static void to_scheduler()
{
    Thread *me = self;
    emulator_switch(&me->stack_pointer, scheduler_stack);
}

static void enter()
{
    self->block->body(self->block->arguments);
    self->done = true;
    to_scheduler();
    abort();
}

static inline void meet(Meeting &at, const char *what)
{
    if (at.arrived && strcmp(at.what, what) && self->block->error.empty())
        self->block->error = std::string("threads meet at ") + at.what + " and at " + what;
    at.what = what;
    if (++at.arrived == at.expected) {
        at.arrived = 0;
        at.turn++;
        return;
    }
    self->waits = &at;
    self->waits_turn = at.turn;
    to_scheduler();
}

/* The others' turn; what this thread waits for is nothing that they meet at. */
static inline void nap()
{
    self->naps = true;
    to_scheduler();
}

static void run_blocks(std::vector<Block> &blocks, unsigned seed)
{
    std::vector<Thread *> threads;
    for (Block &b : blocks)
        for (Thread &thread : b.threads) threads.push_back(&thread);
#ifdef EMULATE_ALONE /* no thread waits for another */
    for (Thread *thread : threads) {
        self = thread;
        thread->block->body(thread->block->arguments);
    }
    return;
#endif
    for (Thread *thread : threads) {
        thread->stack.reset(new unsigned char[STACK]);
        void **top = (void **)((uintptr_t)(thread->stack.get() + STACK) & ~(uintptr_t)15);
#if defined(__x86_64__)
        *--top = nullptr; /* where a return address would be */
        *--top = (void *)enter;
        top -= SAVED_WORDS;
        memset(top, 0, SAVED_WORDS * sizeof *top);
#else
        top -= 20;
        memset(top, 0, 20 * sizeof *top);
        top[11] = (void *)enter; /* x30 */
#endif
        thread->stack_pointer = top;
    }
    auto sound = [&] {
        for (Block &b : blocks)
            if (!b.error.empty()) return false;
        return true;
    };
    std::vector<unsigned> order(threads.size());
    for (unsigned i = 0; i < order.size(); i++) order[i] = i;
    unsigned state = seed * 2654435761u + 12345, left = (unsigned)order.size(), favoured = 0, idle = 0;
    bool alone = false; /* one warp is going on for as long as it can, while the others stand */
    while (left && sound()) {
        bool moved = false;
        /* from first to last, from last to first, or as drawn anew for every round */
        if (seed > 1 && !alone && draw(state) % 4 == 0)
            alone = true, favoured = draw(state) % (((unsigned)order.size() + WARP_LANES - 1) / WARP_LANES);
        if (seed == 1)
            for (unsigned i = 0; i < order.size(); i++) order[i] = (unsigned)order.size() - 1 - i;
        if (seed > 1)
            for (unsigned i = (unsigned)order.size() - 1; i; i--) std::swap(order[i], order[draw(state) % (i + 1)]);
        for (unsigned i : order) {
            Thread &thread = *threads[i];
            if (alone && i / WARP_LANES != favoured) continue;
            if (thread.done || (thread.waits && thread.waits->turn == thread.waits_turn)) continue;
            thread.waits = nullptr;
            thread.naps = false;
            self = &thread;
            emulator_switch(&scheduler_stack, thread.stack_pointer);
            moved |= !thread.naps;
            left -= thread.done;
        }
        idle = moved || alone ? 0 : idle + 1;
        if (!moved) alone = false;
        if (idle == 2) { /* before the first nap of the round before there may have been work */
            for (Thread *thread : threads)
                if (thread->naps && sound()) thread->block->error = "deadlock: a thread waits for what nobody leaves";
                else if (thread->waits && sound())
                    thread->block->error = std::string("deadlock: ") + std::to_string(thread->waits->arrived) + " of " +
                                           std::to_string(thread->waits->expected) + " threads reach " +
                                           thread->waits->what;
        }
    }
}
#endif

/* CuPy has NVRTC take subnormal floats for 0. (Subnormal doubles, which a device keeps, go too where Real is float.) */
struct Flushing {
#if defined(__x86_64__) && CTC_X != 1
    unsigned before = _mm_getcsr();
    Flushing() { _mm_setcsr(before | 0x8040); }
    ~Flushing() { _mm_setcsr(before); }
#endif
};

static std::string launch(Body body, void *arguments, unsigned grid, unsigned threads, size_t shared, unsigned seed)
{
#ifndef EMULATE_ANY_BLOCK
    if (threads % WARP_LANES) return "the block is no whole number of warps";
#endif
    [[maybe_unused]] Flushing flushing;
    unsigned count = at_once(seed);
    std::vector<unsigned> order = order_of(grid, seed);
    for (unsigned first = 0; first < grid; first += count) {
        std::vector<Block> blocks(grid - first < count ? grid - first : count);
        for (unsigned k = 0; k < blocks.size(); k++) {
            Block &b = blocks[k];
            b.index.x = order[first + k];
            b.size = {threads, 1, 1};
            b.grid = {grid, 1, 1};
            b.body = body;
            b.arguments = arguments;
            b.all.expected = (int)threads;
            b.warps = std::vector<Meeting>((threads + WARP_LANES - 1) / WARP_LANES);
            for (unsigned i = 0; i < threads; i++) b.warps[i / WARP_LANES].expected++;
            b.threads = std::vector<Thread>(threads);
            for (unsigned i = 0; i < threads; i++) {
                b.threads[i].index.x = i;
                b.threads[i].block = &b;
                b.threads[i].warp = &b.warps[i / WARP_LANES];
            }
            b.shared = (unsigned char *)malloc(shared ? shared : 1);
            memset(b.shared, 0xCB, shared);
        }
        run_blocks(blocks, seed);
        for (Block &b : blocks) free(b.shared);
        for (Block &b : blocks)
            if (!b.error.empty()) return b.error;
    }
    return "";
}

template <class V>
static inline V exchange(V v, int lane_read, const char *what)
{
    static_assert(sizeof(V) <= 16, "a shuffle moves at most 16 bytes here");
    Meeting &warp = *self->warp;
    unsigned lane = self->index.x % WARP_LANES;
    unsigned char(&values)[WARP_LANES][16] = warp.values[self->turns++ & 1];
    memcpy(values[lane], &v, sizeof v);
    meet(warp, what);
    memcpy(&v, values[lane_read], sizeof v);
    return v;
}

} // namespace emulator

#define threadIdx (emulator::self->index)
#define blockIdx (emulator::self->block->index)
#define blockDim (emulator::self->block->size)
#define gridDim (emulator::self->block->grid)
#define dynamic_shared (emulator::self->block->shared)

#define EMULATOR_TEXT(x) #x
#define EMULATOR_LINE(x) EMULATOR_TEXT(x)
#define __syncthreads() emulator::meet(emulator::self->block->all, "__syncthreads of line " EMULATOR_LINE(__LINE__))
#define __syncwarp() emulator::meet(*emulator::self->warp, "__syncwarp of line " EMULATOR_LINE(__LINE__))

template <class V>
static inline V __shfl_up_sync(unsigned, V v, int by)
{
    int lane = (int)(threadIdx.x % 32);
    return emulator::exchange(v, lane < by ? lane : lane - by, "__shfl_up_sync");
}
template <class V>
static inline V __shfl_sync(unsigned, V v, int lane)
{
    return emulator::exchange(v, lane % 32, "__shfl_sync");
}
template <class V>
static inline V __shfl_xor_sync(unsigned, V v, int by)
{
    return emulator::exchange(v, (int)(threadIdx.x % 32) ^ by, "__shfl_xor_sync");
}

static inline unsigned __ballot_sync(unsigned, bool v)
{
    unsigned votes = v ? 1u << threadIdx.x % 32 : 0;
    for (int by = 16; by; by /= 2) votes |= emulator::exchange(votes, (int)(threadIdx.x % 32) ^ by, "__ballot_sync");
    return votes;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }

static inline void __nanosleep(unsigned) { emulator::nap(); }

template <class V>
static inline V atomicAdd(V *at, V v)
{
    return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
}
template <class V>
static inline V atomicMax(V *at, V v)
{
    V was = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (was < v && !__atomic_compare_exchange_n(at, &was, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
    return was;
}

template <class To, class From>
static inline To bits_as(From v)
{
    To to;
    static_assert(sizeof to == sizeof v, "");
    memcpy(&to, &v, sizeof to);
    return to;
}
static inline int __float_as_int(float v) { return bits_as<int>(v); }
static inline float __int_as_float(int v) { return bits_as<float>(v); }
static inline long long __double_as_longlong(double v) { return bits_as<long long>(v); }
static inline double __longlong_as_double(long long v) { return bits_as<double>(v); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
