/* Which instruction set runs. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

static const ctc_kernel none = {.name = "none"};

atomic_int ctcbind_few_lines;

static int is_intel(void)
{
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
#else
    return 0;
#endif
}

static const ctc_kernel *choose(void)
{
    const ctc_kernel *all[] = {ctcbind_kernel_avx512(), ctcbind_kernel_avx2(), ctcbind_kernel_neon(),
                               ctcbind_kernel_scalar()};
    const char *wanted = getenv("CTCBIND_ISA");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && (!wanted || !*wanted || !strcmp(wanted, all[i]->name))) return all[i];
    return &none;
}

/* Two threads that come here first at once find the same answer. */
const ctc_kernel *ctcbind_kernel(void)
{
    static _Atomic(const ctc_kernel *) chosen;
    const ctc_kernel *kernel = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!kernel) {
        atomic_store_explicit(&ctcbind_few_lines, is_intel(), memory_order_relaxed);
        kernel = choose();
        atomic_store_explicit(&chosen, kernel, memory_order_release);
    }
    return kernel;
}

const char *ctcbind_isa(void) { return ctcbind_kernel()->name; }
