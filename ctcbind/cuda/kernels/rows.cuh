/* How the rows of the logits are dealt out to groups of threads, and how a group reads one. */

/* The rows of the logits, in the order of frames and then samples, go round the groups of all blocks. */
struct Row {
    int64 t, n;
    __device__ __forceinline__ Row(const Problem &p, int64 row)
    {
        bool small = !((row | p.N) >> 32);
        t = small ? (int64)((unsigned)row / (unsigned)p.N) : row / p.N;
        n = row - t * p.N;
    }
    template <class Group>
    static __device__ __forceinline__ int64 first()
    {
        return (int64)blockIdx.x * Group::per_block() + Group::in_block();
    }
    template <class Group>
    static __device__ __forceinline__ int64 step()
    {
        return (int64)gridDim.x * Group::per_block();
    }
};

#define HELD 4 /* reads of a thread that are on their way at once */

/* Columns that one thread has read: packs of M that lie side by side, the k-th from `first + k * step` on. */
template <int M>
struct Columns {
    Real v[HELD][M];
    int count, first, step; /* packs */
};

/* Calls f(columns) for all of a row that falls to this thread: 16 bytes to a pack where a row is long, else one
 * number. */
template <class F>
static __device__ __forceinline__ void read_row(const X *row, int C, int rank, int size, F f)
{
    int head = 0, packs = 0;
    if (C >= size * PACK) {
        head = (int)(-(unsigned long long)row % sizeof(Pack) / sizeof(X));
        packs = (C - head) / PACK;
    }
    const Pack *aligned = (const Pack *)(row + head);
    for (int i = rank; i < packs; i += size * HELD) {
        Pack pack[HELD];
        Columns<PACK> columns = {{}, 0, head + i * PACK, size * PACK};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (i + k * size >= packs) break;
            pack[k] = aligned[i + k * size];
            columns.count = k + 1;
        }
#pragma unroll
        for (int k = 0; k < HELD * PACK; k++) columns.v[k / PACK][k % PACK] = real_of(pack[k / PACK].v[k % PACK]);
        f(columns);
    }
    int loose = C - packs * PACK; /* all of them; or those beside packs, which are fewer than threads */
    for (int i = rank; i < loose; i += size * HELD) {
        Columns<1> columns = {{}, 0, i < head ? i : i + packs * PACK, size};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (i + k * size >= loose) break;
            columns.v[k][0] = real_of(row[columns.first + k * size]);
            columns.count = k + 1;
        }
        f(columns);
    }
}

/* Calls f(c, x) for each of these columns. */
template <class F>
static __device__ __forceinline__ void each_of_row(const X *row, int C, int rank, int size, F f)
{
    read_row(row, C, rank, size, [&](auto &columns) {
        const int M = sizeof columns.v[0] / sizeof columns.v[0][0];
#pragma unroll
        for (int k = 0; k < HELD * M; k++)
            if (k / M < columns.count) f(columns.first + k / M * columns.step + k % M, columns.v[k / M][k % M]);
    });
}
