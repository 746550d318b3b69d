/* The threads that share one row of logits: a warp, or a block. */

#define THREADS 128 /* of each block but the lattice's */

#if REAL_IS_DOUBLE
static __device__ __forceinline__ Real larger(Real a, Real b) { return fmax(a, b); }
#else
static __device__ __forceinline__ Real larger(Real a, Real b) { return fmaxf(a, b); }
#endif
static __device__ __forceinline__ Real total(Real a, Real b) { return a + b; }
static __device__ __forceinline__ double larger_double(double a, double b) { return a > b ? a : b; }
static __device__ __forceinline__ double total_double(double a, double b) { return a + b; }
static __device__ __forceinline__ int larger_int(int a, int b) { return a > b ? a : b; }

/* What all lanes of a warp have: so the compiler knows that they take the same branches by it. */
static __device__ __forceinline__ int of_warp(int v) { return __shfl_sync(ALL_LANES, v, 0); }

/* Every lane receives the same: the order of the operation does not depend on the lane. */
template <class V>
static __device__ __forceinline__ V over_warp(V v, V (*operation)(V, V))
{
    for (int by = WARP / 2; by; by /= 2) v = operation(v, __shfl_xor_sync(ALL_LANES, v, by));
    return v;
}

template <class V>
static __device__ __forceinline__ void over_warp(V &v, V (*operation)(V, V), V &w, V (*other)(V, V))
{
    for (int by = WARP / 2; by; by /= 2) {
        V from = __shfl_xor_sync(ALL_LANES, v, by), and_from = __shfl_xor_sync(ALL_LANES, w, by);
        v = operation(v, from);
        w = other(w, and_from);
    }
}

/* The same over a block; `scratch` holds a value for each warp, or two. */
template <int WARPS = THREADS / WARP, class V>
static __device__ __forceinline__ V over_block(V v, V (*operation)(V, V), void *scratch)
{
    V *each = (V *)scratch;
    v = over_warp(v, operation);
    __syncthreads(); /* the last use of the scratch is over */
    if (threadIdx.x % WARP == 0) each[threadIdx.x / WARP] = v;
    __syncthreads();
    v = each[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) v = operation(v, each[warp]);
    return v;
}

template <int WARPS = THREADS / WARP, class V>
static __device__ __forceinline__ void over_block(V &v, V (*operation)(V, V), V &w, V (*other)(V, V), void *scratch)
{
    V *each = (V *)scratch;
    over_warp(v, operation, w, other);
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        each[threadIdx.x / WARP * 2] = v;
        each[threadIdx.x / WARP * 2 + 1] = w;
    }
    __syncthreads();
    v = each[0];
    w = each[1];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
        v = operation(v, each[2 * warp]);
        w = other(w, each[2 * warp + 1]);
    }
}

#define SCRATCH_BYTES 256 /* a double for each of 32 warps */

struct WarpGroup {
    static __device__ __forceinline__ int size() { return WARP; }
    static __device__ __forceinline__ int rank() { return (int)(threadIdx.x % WARP); }
    static __device__ __forceinline__ int in_block() { return (int)(threadIdx.x / WARP); }
    static __device__ __forceinline__ int per_block() { return THREADS / WARP; }
    static __device__ __forceinline__ void sync() { __syncwarp(); }
    template <class V>
    static __device__ __forceinline__ V over(V v, V (*operation)(V, V))
    {
        return over_warp(v, operation);
    }
    template <class V>
    static __device__ __forceinline__ void over(V &v, V (*operation)(V, V), V &w, V (*other)(V, V))
    {
        over_warp(v, operation, w, other);
    }
};

struct BlockGroup {
    static __device__ __forceinline__ int size() { return THREADS; }
    static __device__ __forceinline__ int rank() { return (int)threadIdx.x; }
    static __device__ __forceinline__ int in_block() { return 0; }
    static __device__ __forceinline__ int per_block() { return 1; }
    static __device__ __forceinline__ void sync() { __syncthreads(); }
    template <class V>
    static __device__ __forceinline__ V over(V v, V (*operation)(V, V))
    {
        return over_block(v, operation, dynamic_shared);
    }
    template <class V>
    static __device__ __forceinline__ void over(V &v, V (*operation)(V, V), V &w, V (*other)(V, V))
    {
        over_block(v, operation, w, other, dynamic_shared);
    }
};
