/* What stands before a kernel's source where it is compiled for the host (see compile.py): for CuPy's own kernels with
 * OTHERS, which are written against CUDA's headers and use what ctcbind's do not. */
#ifdef OTHERS
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#undef __host__
#define __host__
#define EMULATE_ANY_BLOCK
#define CTC_X 1 /* subnormal numbers stay */
#endif

#include "../cuda/emulator.h"

#ifdef OTHERS
#undef __shared__
#define __shared__ static /* blocks run one after the other */
#undef __constant__
#define __constant__ static
#undef __syncwarp
static inline void __syncwarp(unsigned = 0) { emulator::meet(*emulator::self->warp, "__syncwarp"); }
static inline void __threadfence() {}

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
#define BOTH(type)                                                                                                     \
    static inline type min(type a, type b) { return a < b ? a : b; }                                                   \
    static inline type max(type a, type b) { return a > b ? a : b; }
BOTH(long) BOTH(long long) BOTH(unsigned)
#undef BOTH
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline float rsqrt(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
template <class V>
static inline V atomicCAS(V *at, V want, V v)
{
    V was = *at;
    if (was == want) *at = v;
    return was;
}
template <class V>
static inline V __shfl_xor_sync(unsigned mask, V v, int by, int)
{
    return __shfl_xor_sync(mask, v, by);
}
#endif

/* Any kernel behind one C function: its arguments are found by their places, as a launch gives them. */
#include <utility>

namespace fake_cuda {

template <class... A, size_t... I>
static void run(void (*kernel)(A...), void **arguments, std::index_sequence<I...>)
{
    kernel(*(std::remove_reference_t<A> *)arguments[I]...);
}
template <class... A>
static void run(void (*kernel)(A...), void **arguments)
{
    run(kernel, arguments, std::index_sequence_for<A...>{});
}
template <class... A>
static size_t sizes(void (*)(A...), size_t *out)
{
    size_t of[] = {sizeof(A)..., 0};
    for (size_t i = 0; i < sizeof...(A); i++) out[i] = of[i];
    return sizeof...(A);
}

} // namespace fake_cuda

#define KERNEL(name, kernel)                                                                                           \
    extern "C" void run_##name(void *arguments) { fake_cuda::run(&kernel, (void **)arguments); }                       \
    extern "C" size_t sizes_##name(size_t *out) { return fake_cuda::sizes(&kernel, out); }

static std::string launch_error;
extern "C" const char *launch(void (*body)(void *), void **arguments, unsigned grid, unsigned threads, size_t shared)
{
    launch_error = emulator::launch(body, arguments, grid, threads, shared, 2);
    return launch_error.c_str();
}
