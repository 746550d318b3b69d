/* The same two passes, over the logits and to the gradient, for rows of no more classes than a warp has lanes: each
 * lane has one. A warp takes some frames of a sample in turn, so that lengths, labels and addresses are found once for
 * all of them, and reads a row while it works on the one before it. */

/* 2^bits frames of a sample, or fewer at its end. Neighbouring warps have neighbouring samples, whose rows lie side by
 * side. */
struct Stretch {
    int64 n;
    int from, to;

    __device__ __forceinline__ Stretch(const Problem &p, int64 stretch, int bits)
    {
        Row row(p, stretch);
        n = row.n;
        from = (int)row.t << bits;
        to = min(from + (1 << bits), (int)p.T);
    }
    static __device__ __forceinline__ int64 count(const Problem &p, int bits)
    {
        return ((p.T + (1 << bits) - 1) >> bits) * p.N;
    }
};

static __device__ __forceinline__ unsigned either(unsigned a, unsigned b) { return a | b; }

static __device__ __forceinline__ Scaled from_lane(Scaled v, int lane)
{
    Scaled found = {};
    found.m = __shfl_sync(ALL_LANES, v.m, lane);
    found.e = __shfl_sync(ALL_LANES, v.e, lane);
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_rows_by_lane(const Problem p, int64 stretch_bits)
{
    int lane = WarpGroup::rank(), blank = (int)p.blank, width = 1 << (int)p.width_bits, bits = (int)stretch_bits;
    bool there = lane < (int)p.C;
    int64 to_next = row_of(p, 1, p.T, 0) - row_of(p, 0, p.T, 0) - width + WARP; /* strip, from the end of one */
    for (int64 i = Row::first<WarpGroup>(); i < Stretch::count(p, bits); i += Row::step<WarpGroup>()) {
        Stretch s(p, i, bits);
        int64 n = s.n;
        int L = p.lengths[n], T = p.lengths[p.N + n], to = min(s.to, T);
        if (p.status[n] || s.from >= to) continue; /* the whole warp goes on */
        const int *clean = p.clean + n * p.pitch;
        int label = lane < L ? clean[lane] : blank;
        unsigned used = 1u << blank | 1u << label;
        for (int u = lane + WARP; u < L; u += WARP) used |= 1u << clean[u];
        bool mine = over_warp(used, either) >> lane & 1;

        const X *x = p.logits + s.from * p.x_t + n * p.x_n + lane;
        Scaled *of_labels = label_spot(p, n, s.from, 0) + lane, *of_blank = blank_spot(p, n, s.from);
        Measure *measure = p.measures + n * p.T + s.from;
        Real next = there ? real_of(*x) : -INF;
        bool far = false, nan = false;
        for (int t = s.from; t < to; t++) {
            Real v = next, size_of_v = v < 0 ? -v : v;
            x += p.x_t;
            if (there && t + 1 < to) next = real_of(*x);

            Real top = larger(v, -INF), high = mine ? top : -INF;
            over_warp(top, larger, high, larger);
            bool tie = there && v == top;
            Real below = over_warp(tie ? (Real)0 : exp_below(v - top), total);
            Real rest = below + (Real)(__popc(__ballot_sync(ALL_LANES, tie)) - 1);
            far |= mine && size_of_v < INF && is_far(size_of_v, T);
            nan |= v != v;

            Scaled emitted = {};
            if (mine) emitted = emission(v, high, top, offset_of(t, T));
            if (lane == blank) *of_blank = emitted;
            Scaled *to_label = of_labels;
#pragma unroll 1
            for (int u = 0, c = label; u < L;) {
                Scaled of_label = from_lane(emitted, c);
                if (u + lane < L) *to_label = of_label;
                u += WARP;
                to_label += u & (width - 1) ? WARP : to_next;
                c = u + lane < L ? clean[u + lane] : blank;
            }
            if (lane == 0) {
                Measure found = {top, high, 1 / (1 + rest), rest};
                *measure = found;
            }
            of_labels += width;
            of_blank++;
            measure++;
        }
        if (far || nan) atomicMax(p.strange + n, (unsigned)(nan ? NOT_NUMBERS : FAR));
    }
}

/* Calls f(i, pair) for the pairs of a frame that fall to this lane, but for the first. `to_next` leads from the end of
 * a strip to the next. */
template <class F>
static __device__ __forceinline__ void each_further_pair(const Pair *row, int L, int width, int64 to_next, F f)
{
    for (int i = WarpGroup::rank(), u = 0;;) {
        u += WARP;
        row += u & (width - 1) ? WARP : to_next;
        if (i + u > L) return;
        f(i + u, row + i);
    }
}

/* The gradient of the frames from `from` to `to` of sample n, where occupancies are as `LOGARITHMS` says. */
template <bool LOGARITHMS>
static __device__ __forceinline__ void write_frames(const Problem &p, int64 n, int from, int to, Whole *sum_of)
{
    int lane = WarpGroup::rank(), blank = (int)p.blank, width = 1 << (int)p.width_bits;
    int L = p.lengths[n], T = p.lengths[p.N + n], middle = (T - 1) / 2;
    bool there = lane < (int)p.C;
    const X *x = p.logits + from * p.x_t + n * p.x_n + lane;
    X *g = p.grad + from * p.g_t + n * p.g_n + lane;
    const Pair *alpha = pair_at(p, n, false, 0, 0), *beta = pair_at(p, n, true, 0, 0);
    const Measure *measures = p.measures + n * p.T;
    int64 to_next = row_of(p, 1, p.T / 2 + 1, 0) - row_of(p, 0, p.T / 2 + 1, 0) - width + WARP;
    const int *clean = p.clean + n * p.pitch;
    int of_alpha = lane < L ? clean[lane] : blank, of_beta = lane < L ? clean[L - 1 - lane] : blank;
    Real weight = (Real)weight_of(p, n, L), next = there ? real_of(*x) : -INF;
    for (int t = from; t < to; t++, g += p.g_t) {
        Real v = next;
        x += p.x_t;
        if (there && t + 1 < to) next = real_of(*x);
        Measure measure = measures[t];
        /* occupancies: before the middle where alpha was; behind it where beta was, whose labels are reversed */
        bool behind = t > middle;
        const Pair *row = (behind ? beta : alpha) + ((int64)(behind ? T - 1 - t : t) << (int)p.width_bits);
        if (t == middle) row = pair_in_middle(p, n, 0);
        int64 further = t == middle ? WARP : to_next;

        double level = -INF;
        if (LOGARITHMS) {
            auto raise = [&](int u, const Pair *pair) {
                if (u < L) level = fmax(level, *(const double *)&pair->label);
                level = fmax(level, *(const double *)&pair->blank);
            };
            if (lane <= L) raise(lane, row + lane);
            each_further_pair(row, L, width, further, raise);
            level = over_warp(level, larger_double);
        }
        auto share = [&](const Scaled *from) {
            return LOGARITHMS ? Logarithm::load(from).above(level) : *(const Real *)from;
        };
        Real own = lane < L ? share(&row[lane].label) : 0, of_class = lane <= L ? share(&row[lane].blank) : 0;
        Real sum = own;
        each_further_pair(row, L, width, further, [&](int u, const Pair *pair) {
            if (u < L) sum += share(&pair->label);
            of_class += share(&pair->blank);
        });
        over_warp(sum, total, of_class, total);
        sum += of_class;
        Real scale = sum > 0 ? 1 / sum : 0;
        of_class *= scale;

        auto count = [&](Real share, int label) {
            atomicAdd(sum_of + label, (Whole)(share * scale * WHOLE_ONE + (Real)0.5));
        };
        sum_of[lane] = 0;
        __syncwarp();
        if (lane < L) count(own, behind ? of_beta : of_alpha);
        each_further_pair(row, L, width, further, [&](int u, const Pair *pair) {
            if (u < L) count(share(&pair->label), clean[behind ? L - 1 - u : u]);
        });
        __syncwarp();
        if (lane != blank) of_class = (Real)sum_of[lane] / (Real)WHOLE_ONE;
        Real factor = measure.inverse * weight, softmax = v == measure.top ? factor : 0;
        if (measure.top < INF) softmax = exp_below(v - measure.top) * factor;
        if (there) *g = stored(softmax - of_class * weight);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_gradient_by_lane(const Problem p, int64 stretch_bits)
{
    int lane = WarpGroup::rank(), bits = (int)stretch_bits;
    Whole *sum_of = (Whole *)(dynamic_shared + SCRATCH_BYTES) + WarpGroup::in_block() * WARP; /* each class */
    for (int64 i = Row::first<WarpGroup>(); i < Stretch::count(p, bits); i += Row::step<WarpGroup>()) {
        Stretch s(p, i, bits);
        int T = p.lengths[p.N + s.n], status = p.status[s.n], to = status ? s.from : min(s.to, T);
        unsigned strange = p.strange[s.n];
        bool nan = status == BAD_LABELS || (status == 0 && strange == NOT_NUMBERS);
        if (nan) to = s.from;
        if (s.from < to && strange == FAR) write_frames<true>(p, s.n, s.from, to, sum_of);
        else if (s.from < to) write_frames<false>(p, s.n, s.from, to, sum_of);
        for (int t = max(s.from, to); t < s.to; t++)
            if (lane < (int)p.C) p.grad[t * p.g_t + s.n * p.g_n + lane] = stored(nan && t < T ? NOT_A_NUMBER : (Real)0);
    }
}
