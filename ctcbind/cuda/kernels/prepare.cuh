/* One block a sample: its lengths, its labels brought into range, what it repeats, whether a path exists.
 * Nothing outside the given arrays is read, whatever they hold. */

static __device__ __forceinline__ int64 integer(const void *array, int64 i, bool wide)
{
    return wide ? ((const int64 *)array)[i] : (int64)((const int *)array)[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_prepare(const Problem p)
{
    int64 n = blockIdx.x, rank = threadIdx.x, size = THREADS;
    bool flat = p.label_width < 0;
    int64 first = flat ? 0 : n * p.label_width, room = flat ? p.label_total : p.label_width, L = 0;
    int bad = 0;
    if (flat) { /* the lengths of the samples before it */
        double sum = 0;
        for (int64 k = rank; k < n; k += size) {
            int64 length = integer(p.label_lengths, k, p.wide & 2);
            bad |= length < 0 || length > p.label_total;
            sum += bad ? 0 : (double)length;
        }
        first = (int64)over_block(sum, total_double, dynamic_shared);
        if (first > p.label_total) first = p.label_total, bad = 1;
        room = p.label_total - first;
    }
    if (p.label_lengths) L = integer(p.label_lengths, n, p.wide & 2);
    else { /* up to the first negative, behind which no label may follow */
        double least = (double)room;
        for (int64 i = rank; i < room; i += size)
            if (integer(p.labels, first + i, p.wide & 1) < 0) {
                least = (double)i;
                break;
            }
        L = (int64)-over_block(-least, larger_double, dynamic_shared);
        for (int64 i = L + rank; i < room; i += size) bad |= integer(p.labels, first + i, p.wide & 1) >= 0;
    }
    int64 T = p.input_lengths ? integer(p.input_lengths, n, p.wide & 4) : p.T;
    if (L < 0 || L > room || (flat && n == p.N - 1 && L != room)) bad = 1, L = 0;
    if (T < 0 || T > p.T) bad = 1, T = T < 0 ? 0 : p.T;

    double repeats = 0;
    int *clean = p.clean + n * p.pitch, *slot = p.slot ? p.slot + n * p.pitch : 0;
    for (int64 i = rank; i < L; i += size) {
        int64 label = integer(p.labels, first + i, p.wide & 1);
        if (i && label == integer(p.labels, first + i - 1, p.wide & 1)) repeats += 1;
        if (label < 0 || label >= p.C || label == p.blank) bad = 1, label = p.blank;
        if (i < p.pitch - 1) clean[i] = (int)label;
    }
    if (!p.sparse && p.slot)
        for (int64 c = rank; c < p.C; c += size) slot[c] = c == p.blank;
    bad = over_block(bad, larger_int, dynamic_shared);
    repeats = over_block(repeats, total_double, dynamic_shared);
    bool infeasible = (double)L + (p.simple ? 0 : repeats) > (double)T;
    bool fits = !bad && !infeasible && L < p.pitch; /* the barriers above have made the labels visible */
    if (fits && p.slot)
        for (int64 i = rank; i < L; i += size) {
            int same = 0;
            for (int like = 8; p.sparse && like == 8; same += like) /* eight are read at once */
#pragma unroll
                for (int k = 7; k >= 0; k--)
                    if (clean[same + k < i ? same + k : i] == clean[i]) like = k;
            if (p.sparse) slot[i] = same;
            else atomicMax(slot + clean[i], 1);
        }
    if (p.edges) { /* nothing is left yet, and no block has begun */
        Word *edges = edge_at(p, n, false, false, 0);
        for (int64 i = rank; i < 4 * (p.strips - 1) * edge_size(p); i += size) edges[i] = ABSENT;
        if (n == 0 && rank < 2) p.tickets[rank] = 0;
    }
    if (rank == 0) {
        p.lengths[n] = (int)L;
        p.lengths[p.N + n] = (int)T;
        p.status[n] = bad ? BAD_LABELS : infeasible ? INFEASIBLE : fits ? 0 : TOO_LONG;
        p.strange[n] = 0;
    }
}
