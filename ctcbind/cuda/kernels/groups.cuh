/* The threads that share one row of logits: a warp, or a block. */

static __device__ __forceinline__ Real larger(Real a, Real b) { return a > b ? a : b; }
static __device__ __forceinline__ Real total(Real a, Real b) { return a + b; }
static __device__ __forceinline__ double larger_double(double a, double b) { return a > b ? a : b; }
static __device__ __forceinline__ double total_double(double a, double b) { return a + b; }
static __device__ __forceinline__ int larger_int(int a, int b) { return a > b ? a : b; }

/* Every lane receives the same: the order of the operation does not depend on the lane. */
template <class V>
static __device__ __forceinline__ V over_warp(V v, V (*operation)(V, V))
{
    for (int by = WARP / 2; by; by /= 2) v = operation(v, __shfl_xor_sync(ALL_LANES, v, by));
    return v;
}

/* The same over a block of `threads`; `scratch` holds a value for each warp. */
template <class V>
static __device__ V over_block(V v, V (*operation)(V, V), void *scratch)
{
    V *each = (V *)scratch;
    v = over_warp(v, operation);
    __syncthreads(); /* the last use of the scratch is over */
    if (threadIdx.x % WARP == 0) each[threadIdx.x / WARP] = v;
    __syncthreads();
    v = each[0];
    for (unsigned warp = 1; warp < blockDim.x / WARP; warp++) v = operation(v, each[warp]);
    return v;
}

#define SCRATCH_BYTES 256 /* a double for each of 32 warps */

struct WarpGroup {
    static const int SIZE = WARP;
    static __device__ __forceinline__ int rank() { return (int)(threadIdx.x % WARP); }
    static __device__ __forceinline__ int in_block() { return (int)(threadIdx.x / WARP); }
    static __device__ __forceinline__ int per_block() { return (int)(blockDim.x / WARP); }
    static __device__ __forceinline__ void sync() { __syncwarp(); }
    template <class V>
    static __device__ __forceinline__ V over(V v, V (*operation)(V, V))
    {
        return over_warp(v, operation);
    }
};

struct BlockGroup {
    static __device__ __forceinline__ int rank() { return (int)threadIdx.x; }
    static __device__ __forceinline__ int in_block() { return 0; }
    static __device__ __forceinline__ int per_block() { return 1; }
    static __device__ __forceinline__ void sync() { __syncthreads(); }
    template <class V>
    static __device__ __forceinline__ V over(V v, V (*operation)(V, V))
    {
        return over_block(v, operation, dynamic_shared);
    }
};

template <class Group>
static __device__ __forceinline__ int group_size()
{
    return (int)blockDim.x / Group::per_block();
}
