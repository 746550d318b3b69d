/* The gradient, softmax less occupancy, from the logits and the lattice.
 *
 * Occupancies of one class are summed in whole numbers, whose sum does not depend on the order of the threads. Those of
 * a row are divided by their own sum first: it is 1 but for the rounding that alpha and beta have gathered. */

#if CTC_K
#if REAL_IS_DOUBLE
typedef unsigned long long Whole;
#define WHOLE_ONE 4611686018427387904.0 /* 2^62 */
#else
typedef unsigned Whole;
#define WHOLE_ONE 1073741824.0f /* 2^30 */
#endif

/* Which row of the lattice holds the occupancies of frame t. */
static __device__ __forceinline__ int64 lattice_row(int64 t, int64 middle, int64 rows)
{
    return t < middle ? t : t > middle ? t + 1 : rows - 1;
}

template <class F>
static __device__ __forceinline__ void map_row(const X *x, X *g, int64 C, int rank, int size, F f)
{
    int64 done = 0;
    if (((unsigned long long)x | (unsigned long long)g) % sizeof(Pack) == 0) {
        done = C / PACK;
        for (int64 i = rank; i < done; i += size) {
            Pack pack = ((const Pack *)x)[i];
            for (int k = 0; k < PACK; k++) pack.v[k] = stored(f(i * PACK + k, real_of(pack.v[k])));
            ((Pack *)g)[i] = pack;
        }
        done *= PACK;
    }
    for (int64 c = done + rank; c < C; c += size) g[c] = stored(f(c, real_of(x[c])));
}

static __device__ __forceinline__ void fill_row(X *g, int64 C, int rank, int size, X value)
{
    int64 done = 0;
    if ((unsigned long long)g % sizeof(Pack) == 0) {
        Pack pack;
        for (int k = 0; k < PACK; k++) pack.v[k] = value;
        done = C / PACK;
        for (int64 i = rank; i < done; i += size) ((Pack *)g)[i] = pack;
        done *= PACK;
    }
    for (int64 c = done + rank; c < C; c += size) g[c] = value;
}

/* `tile` classes (or positions of labels) are summed at a time, in that many numbers of shared memory a group. */
template <class Group>
static __device__ __forceinline__ void write_rows(const Problem &p, int64 tile)
{
    int rank = Group::rank(), size = group_size<Group>();
    Whole *sums = (Whole *)(dynamic_shared + SCRATCH_BYTES) + Group::in_block() * tile;
    int64 step = (int64)gridDim.x * Group::per_block();
    for (int64 row = (int64)blockIdx.x * Group::per_block() + Group::in_block(); row < p.T * p.N; row += step) {
        int64 t = row / p.N, n = row % p.N, at = n * p.T + t, L = p.lengths[n], T = p.lengths[p.N + n];
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        X *g = p.grad + t * p.g_t + n * p.g_n;
        int status = p.status[n];
        bool nan = status == BAD_LABELS || (status == 0 && p.most[n] == ~0u);
        if (nan || status || t >= T) {
            Real fill = nan && t < T ? (Real)NOT_A_NUMBER : 0;
            fill_row(g, p.C, rank, size, stored(fill));
            continue; /* the whole group goes on */
        }
        Real top = p.top[at], inverse = p.inverse[at], weight = (Real)weight_of(p, n, L);
        const int *clean = p.clean + n * p.pitch, *slot = p.slot + n * p.pitch;
        Scaled *labels = p.lattice + (n * p.rows + lattice_row(t, (T - 1) / 2, p.rows)) * 2 * p.pitch;
        Scaled *blanks = labels + p.pitch;
        bool logarithms = in_logarithms(p, n, T);

        double level = -INF;
        if (logarithms) {
            for (int64 i = rank; i <= L; i += size) {
                if (i < L) level = fmax(level, *(const double *)(labels + i));
                level = fmax(level, *(const double *)(blanks + i));
            }
            level = Group::over(level, larger_double);
        }
        auto occupancy = [&](const Scaled *from) {
            return logarithms ? Logarithm::load(from).above(level) : *(const Real *)from;
        };
        auto softmax = [&](Real v) {
            return top < INF ? exp_below(v - top) * inverse : v == top ? inverse : (Real)0;
        };
        Real sum = 0, blank = 0;
        for (int64 i = rank; i <= L; i += size) {
            if (i < L) sum += occupancy(labels + i);
            blank += occupancy(blanks + i);
        }
        blank = Group::over(blank, total);
        sum = Group::over(sum, total) + blank;
        Real scale = sum > 0 ? 1 / sum : 0;
        blank *= scale;

        int64 columns = p.sparse ? L : p.C;
        for (int64 from = 0; from < columns; from += tile) {
            int64 count = columns - from < tile ? columns - from : tile;
            for (int64 i = rank; i < count; i += size) sums[i] = 0;
            Group::sync();
            for (int64 i = rank; i < L; i += size) {
                int64 to = (p.sparse ? slot[i] : clean[i]) - from;
                if (to < 0 || to >= count) continue;
                atomicAdd(sums + to, (Whole)(occupancy(labels + i) * scale * WHOLE_ONE + (Real)0.5));
            }
            Group::sync();
            if (p.sparse) { /* aside until the row is written, as the gradient may lie on the logits */
                for (int64 i = rank; i < count; i += size)
                    if (slot[from + i] == from + i) {
                        Real one = softmax(real_of(x[clean[from + i]])) - (Real)sums[i] / (Real)WHOLE_ONE;
                        blanks[from + i].m = one * weight;
                    }
            } else
                map_row(x + from, g + from, count, rank, size, [&](int64 c, Real v) {
                    Real occupied = from + c == p.blank ? blank : (Real)sums[c] / (Real)WHOLE_ONE;
                    return (softmax(v) - occupied) * weight;
                });
            Group::sync();
        }
        if (!p.sparse) continue;
        map_row(x, g, p.C, rank, size, [&](int64 c, Real v) {
            return (softmax(v) - (c == p.blank ? blank : (Real)0)) * weight;
        });
        Group::sync();
        for (int64 i = rank; i < L; i += size)
            if (slot[i] == i) g[clean[i]] = stored(blanks[i].m);
    }
}

extern "C" __global__ void __launch_bounds__(128) ctc_gradient_by_warp(const Problem p, int64 tile)
{
    write_rows<WarpGroup>(p, tile);
}

extern "C" __global__ void __launch_bounds__(256) ctc_gradient_by_block(const Problem p, int64 tile)
{
    write_rows<BlockGroup>(p, tile);
}
#endif
