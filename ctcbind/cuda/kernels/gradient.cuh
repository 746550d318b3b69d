/* The gradient, softmax less occupancy, from the logits and the lattice.
 *
 * Occupancies of one class are summed in whole numbers, whose sum does not depend on the order of the threads. Those of
 * a row are divided by their own sum first: it is 1 but for the rounding that alpha and beta have gathered. */

#if REAL_IS_DOUBLE
typedef unsigned long long Whole;
#define WHOLE_ONE 4611686018427387904.0 /* 2^62 */
#else
typedef unsigned Whole;
#define WHOLE_ONE 1073741824.0f /* 2^30 */
#endif

/* The occupancies of one frame: before the middle where alpha was, behind it where beta was, whose labels are
 * reversed. */
struct Occupied {
    const Problem &p;
    Pair *row;
    int64 strip;
    int L, behind;

    __device__ __forceinline__ Occupied(const Problem &p, int64 n, int labels, int t, int T) : p(p), L(labels)
    {
        int middle = (T - 1) / 2;
        behind = t > middle;
        row = t == middle ? pair_in_middle(p, n, 0) : pair_at(p, n, behind, behind ? T - 1 - t : t, 0);
        int width = 1 << (int)p.width_bits;
        strip = t == middle ? width : pair_at(p, n, 0, 0, width) - pair_at(p, n, 0, 0, 0);
    }
    __device__ __forceinline__ Pair *at(int i) const { return row + strip_of(p, i) * strip + in_strip(p, i); }
    __device__ __forceinline__ Scaled *label(int i) const { return &at(behind ? L - 1 - i : i)->label; }
    __device__ __forceinline__ Scaled *blank(int i) const { return &at(behind ? L - i : i)->blank; }
};

/* g[c] = f(x[c]) for the columns that fall to this thread; the rows may be one. */
template <class F>
static __device__ __forceinline__ void map_row(const X *x, X *g, int C, int rank, int size, F f)
{
    int head = 0, packs = 0;
    if (C >= size * PACK && ((unsigned long long)x - (unsigned long long)g) % sizeof(Pack) == 0) {
        head = (int)(-(unsigned long long)x % sizeof(Pack) / sizeof(X));
        packs = (C - head) / PACK;
    }
    const Pack *from = (const Pack *)(x + head);
    Pack *to = (Pack *)(g + head);
    for (int i = rank; i < packs; i += size * HELD) {
        Pack pack[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (i + k * size < packs) pack[k] = from[i + k * size];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (i + k * size >= packs) break;
#pragma unroll
            for (int j = 0; j < PACK; j++)
                pack[k].v[j] = stored(f(head + (i + k * size) * PACK + j, real_of(pack[k].v[j])));
            to[i + k * size] = pack[k];
        }
    }
    for (int i = rank; i < C - packs * PACK; i += size) {
        int c = i < head ? i : i + packs * PACK;
        g[c] = stored(f(c, real_of(x[c])));
    }
}

static __device__ __forceinline__ void fill_row(X *g, int C, int rank, int size, X value)
{
    int head = (int)(-(unsigned long long)g % sizeof(Pack) / sizeof(X)), packs = C > head ? (C - head) / PACK : 0;
    Pack pack, *to = (Pack *)(g + head);
    for (int k = 0; k < PACK; k++) pack.v[k] = value;
    for (int i = rank; i < packs; i += size) to[i] = pack;
    for (int i = rank; i < C - packs * PACK; i += size) g[i < head ? i : i + packs * PACK] = value;
}

/* `tile` classes (or positions of labels) are summed at a time, in that many numbers of shared memory a group. */
template <class Group>
static __device__ __forceinline__ void write_rows(const Problem &p, int64 tile_size)
{
    int rank = Group::rank(), size = Group::size(), C = (int)p.C, tile = (int)tile_size;
    Whole *sums = (Whole *)(dynamic_shared + SCRATCH_BYTES) + Group::in_block() * tile;
    /* The last rows first: they were measured last, and are in the cache if any are. */
    for (int64 i = p.T * p.N - 1 - Row::first<Group>(); i >= 0; i -= Row::step<Group>()) {
        Row row(p, i);
        int64 n = row.n;
        int t = (int)row.t, L = p.lengths[n], T = p.lengths[p.N + n], status = p.status[n];
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        X *g = p.grad + t * p.g_t + n * p.g_n;
        unsigned strange = p.strange[n];
        bool nan = status == BAD_LABELS || (status == 0 && strange == NOT_NUMBERS);
        if (nan || status || t >= T) {
            Real fill = nan && t < T ? (Real)NOT_A_NUMBER : 0;
            fill_row(g, C, rank, size, stored(fill));
            continue; /* the whole group goes on */
        }
        Measure measure = p.measures[n * p.T + t];
        Real top = measure.top, weight = (Real)weight_of(p, n, L), factor = measure.inverse * weight;
        const int *clean = p.clean + n * p.pitch, *slot = p.slot + n * p.pitch;
        Occupied occupied(p, n, L, t, T);
        bool logarithms = strange == FAR;

        double level = -INF;
        if (logarithms) {
            for (int i = rank; i <= L; i += size) {
                if (i < L) level = fmax(level, *(const double *)occupied.label(i));
                level = fmax(level, *(const double *)occupied.blank(i));
            }
            level = Group::over(level, larger_double);
        }
        auto share = [&](const Scaled *from) {
            return logarithms ? Logarithm::load(from).above(level) : *(const Real *)from;
        };
        auto softmax = [&](Real v) { return top < INF ? exp_below(v - top) * factor : v == top ? factor : (Real)0; };
        Real first = rank < L ? share(occupied.label(rank)) : 0; /* read once where there are no more than threads */
        Real sum = first, blank = rank <= L ? share(occupied.blank(rank)) : 0;
        for (int i = rank + size; i <= L; i += size) {
            if (i < L) sum += share(occupied.label(i));
            blank += share(occupied.blank(i));
        }
        Group::over(sum, total, blank, total);
        sum += blank;
        Real scale = sum > 0 ? 1 / sum : 0;
        blank *= scale;

        Real of_blank = p.sparse ? softmax(real_of(x[p.blank])) - blank * weight : 0;
        int columns = p.sparse ? L : C, from = 0;
        do { /* once at least: the blank is read before it is written over */
            int count = columns - from < tile ? columns - from : tile;
            for (int i = rank; i < count; i += size) sums[i] = 0;
            Group::sync();
            for (int i = rank; i < L; i += size) {
                int to = (p.sparse ? slot[i] : clean[i]) - from;
                if (to < 0 || to >= count) continue;
                Real own = i == rank ? first : share(occupied.label(i));
                atomicAdd(sums + to, (Whole)(own * scale * WHOLE_ONE + (Real)0.5));
            }
            Group::sync();
            if (p.sparse) { /* aside until the row is written, as the gradient may lie on the logits */
                for (int i = rank; i < count; i += size)
                    if (slot[from + i] == from + i) {
                        Real of_class = (Real)sums[i] / (Real)WHOLE_ONE;
                        occupied.blank(from + i)->m = softmax(real_of(x[clean[from + i]])) - of_class * weight;
                    }
            } else
                map_row(x + from, g + from, count, rank, size, [&](int c, Real v) {
                    Real of_class = from + c == (int)p.blank ? blank : (Real)sums[c] / (Real)WHOLE_ONE;
                    return softmax(v) - of_class * weight;
                });
            Group::sync();
            from += tile;
        } while (from < columns);
        if (!p.sparse) continue;
        if (top < INF) map_row(x, g, C, rank, size, [&](int, Real v) { return exp_below(v - top) * factor; });
        else map_row(x, g, C, rank, size, [&](int, Real v) { return v == top ? factor : (Real)0; });
        Group::sync();
        for (int i = rank; i < L; i += size)
            if (slot[i] == i) g[clean[i]] = stored(occupied.blank(i)->m);
        if (rank == 0) g[p.blank] = stored(of_blank);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_gradient_by_warp(const Problem p, int64 tile)
{
    write_rows<WarpGroup>(p, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_gradient_by_block(const Problem p, int64 tile)
{
    write_rows<BlockGroup>(p, tile);
}
