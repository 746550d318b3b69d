/* Around a call of cudnnCTCLoss_v8, whose labels are on the device: what it must not be shown is replaced before, and
 * what it leaves or gets wrong is put right after (see engines/cudnn.py). Nothing of that is known to the host.
 *
 * Before: ctc_prepare, ctc_pack, ctc_move. After: ctc_look (each row of logits), ctc_judge (each sample), ctc_put (each
 * row of the gradient). */

#define FLOOR -87.3365478515625 /* ln of the least normal float: cuDNN's probabilities have no digits below */
#define ROWS_SUM_TO (Real)0.5 /* see engines/cudnn_modes.py, for this and the next three */
#define CERTAIN (Real)0.999
#define SURE_LOSS 1.0
#define OFF (Real)(CTC_X == 0 ? 3.4526698e-4 : CTC_X == 1 ? 1.4901161e-8 : CTC_X == 2 ? 0.03125 : 0.08838835)
#define MATTERS 72.4736042403636 /* with a loss below, less what the number of places adds, none can have mattered */

static __device__ __forceinline__ bool is_sent(const Problem &p, int64 n)
{
    return !p.status[n] && p.lengths[n] && p.lengths[p.N + n];
}

/* Whether v is no number, or as large as that: false. */
static __device__ __forceinline__ bool is_within(Real v, Real limit) { return v > -limit && v < limit; }

/* Where class c is when the blank's column is in front. */
static __device__ __forceinline__ int64 rotated(const Problem &p, int64 c)
{
    return c == p.blank ? 0 : c < p.blank ? c + 1 : c;
}

/* A row of cuDNN's gradient, made one with respect to the logits; by a warp. NaN stays. */
struct Answer {
    const Problem &p;
    const X *x;
    const float *raw;
    bool of_y, sure; /* what it is not yet; and whether a certain class has 1 too much */

    __device__ __forceinline__ Answer(const Problem &p, const X *x, const float *raw, Real cost)
        : p(p), x(x), raw(raw), of_y(false), sure(false)
    {
        of_y = p.probabilities && sum() < -ROWS_SUM_TO;
        sure = (double)cost < SURE_LOSS;
    }
    __device__ __forceinline__ Real operator[](int64 c) const
    {
        Real v = (Real)raw[p.rotated ? rotated(p, c) : c], y = of_y ? real_of(x[c]) : 0;
        if (of_y) v = v >= 0 ? y : fused(y, v, y);
        return sure && v > CERTAIN ? v - 1 : v;
    }
    __device__ __forceinline__ Real sum() const
    {
        Real sum = 0;
        for (int64 c = WarpGroup::rank(); c < p.C; c += WARP) sum += (*this)[c];
        return over_warp(sum, total);
    }
};

/* One block a sample. A sample that is not to be sent is one frame with one label in cuDNN's eyes. */
extern "C" __global__ void __launch_bounds__(THREADS) ctc_pack(const Problem p)
{
    int64 n = blockIdx.x;
    double before = 0;
    for (int64 k = threadIdx.x; k < n; k += THREADS) before += is_sent(p, k) ? p.lengths[k] : 1;
    int *to = p.packed + (int64)over_block(before, total_double, dynamic_shared);
    bool own = is_sent(p, n);
    int64 L = own ? p.lengths[n] : 1;
    for (int64 i = threadIdx.x; i < L; i += THREADS) to[i] = own ? (int)rotated(p, p.clean[n * p.pitch + i]) : 1;
    if (threadIdx.x == 0) {
        p.packed_lengths[n] = (int)L;
        p.packed_lengths[p.N + n] = own ? p.lengths[p.N + n] : 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_move(const Problem p)
{
    for (int64 i = Row::first<WarpGroup>(); i < p.T * p.N; i += Row::step<WarpGroup>()) {
        Row row(p, i);
        const X *x = p.logits + row.t * p.x_t + row.n * p.x_n;
        for (int64 c = WarpGroup::rank(); c < p.C; c += WARP) p.moved[i * p.C + rotated(p, c)] = (float)real_of(x[c]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_look(const Problem p)
{
    int rank = WarpGroup::rank(), C = (int)p.C;
    for (int64 i = Row::first<WarpGroup>(); i < p.T * p.N; i += Row::step<WarpGroup>()) {
        Row row(p, i);
        int64 t = row.t, n = row.n, at = n * p.T + t, L = p.lengths[n];
        if (p.status[n] || t >= p.lengths[p.N + n]) continue; /* the whole warp goes on */
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        const int *clean = p.clean + n * p.pitch;

        Real top = -INF;
        int strange = 0;
        each_of_row(x, C, rank, WARP, [&](int, Real v) {
            top = larger(top, v);
            bool unfit = v == INF || (p.probabilities ? v < 0 : v == -INF);
            strange = larger_int(strange, v != v ? NOT_NUMBERS : unfit ? UNFIT : 0);
        });
        top = over_warp(top, larger);
        strange = over_warp(strange, larger_int);
        Real sum = 0, low = -real_of(x[p.blank]);
        each_of_row(x, C, rank, WARP, [&](int, Real v) { sum += p.probabilities ? v : exp_below(v - top); });
        sum = over_warp(sum, total);
        if (p.probabilities && strange < NOT_NUMBERS)
            strange = strange || !is_within(sum - 1, OFF) ? UNLIKE_PROBABILITIES : 0;
        if (p.doubted && is_sent(p, n)) {
            const float *raw = p.raw + t * p.r_t + n * p.r_n;
            Real rest = Answer(p, x, raw, (Real)p.costs[n]).sum();
            strange = larger_int(strange, is_within(rest, ROWS_SUM_TO) ? 0 : UNFIT);
        }
        for (int64 i = rank; i < L; i += WARP) low = larger(low, -real_of(x[clean[i]]));
        low = over_warp(low, larger);
        if (rank == 0) {
            double span = p.probabilities ? -log((double)top) : log((double)sum);
            /* -ln p of the most probable class in place of high */
            Measure measure = {top, (Real)span, 1 / sum, sum - 1};
            p.measures[at] = measure;
            p.least[at] = p.probabilities ? log(-(double)low) : -(double)low - (double)top - span;
            if (strange) atomicMax(p.strange + n, (unsigned)strange);
        }
    }
}

/* One block a sample: its loss, and in `status` what its gradient is. */
extern "C" __global__ void __launch_bounds__(THREADS) ctc_judge(const Problem p)
{
    int64 n = blockIdx.x, L = p.lengths[n], T = p.lengths[p.N + n];
    int status = p.status[n];
    double best = 0, blank = 0, low = 0;
    for (int64 t = threadIdx.x; t < T && !status; t += THREADS) {
        int64 at = n * p.T + t;
        Measure measure = p.measures[at];
        best += (double)measure.high;
        double y = (double)real_of(p.logits[t * p.x_t + n * p.x_n + p.blank]);
        blank += p.probabilities ? -log(y) : (double)measure.high + (double)measure.top - y;
        low = larger_double(low, -p.least[at]);
    }
    best = over_block(best, total_double, dynamic_shared);
    blank = over_block(blank, total_double, dynamic_shared);
    low = -over_block(low, larger_double, dynamic_shared);
    if (threadIdx.x) return;
    Real loss = NOT_A_NUMBER;
    if (status) {
        if (status == INFEASIBLE) loss = INF;
    } else if (T == 0) {
        loss = 0;
    } else if (p.strange[n]) {
        unsigned strange = p.strange[n];
        status = strange == UNLIKE_PROBABILITIES ? NO_PROBABILITIES : strange == NOT_NUMBERS ? NAN_LOGITS : LOST;
    } else if (L == 0 && !(blank < INF)) {
        status = LOST;
    } else if (L == 0) {
        loss = blank > 0 ? (Real)blank : 0;
        status = EMPTY;
    } else {
        double cost = (double)p.costs[n], places = log((double)T) + log((double)L + 1);
        bool lost = !(cost > -INF && cost < INF) || (cost == 0 && best > 1e-3);
        if (lost || (!(cost + places < MATTERS) && low < FLOOR)) status = LOST;
        else loss = cost > 0 ? (Real)cost : 0;
    }
    p.losses[n] = loss;
    p.status[n] = status;
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_put(const Problem p)
{
    int rank = WarpGroup::rank();
    for (int64 i = Row::first<WarpGroup>(); i < p.T * p.N; i += Row::step<WarpGroup>()) {
        Row row(p, i);
        int64 t = row.t, n = row.n;
        Measure measure = p.measures[n * p.T + t];
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        const float *raw = p.raw + t * p.r_t + n * p.r_n;
        X *g = p.grad + t * p.g_t + n * p.g_n;
        int status = p.status[n];
        Real weight = (Real)weight_of(p, n, p.lengths[n]);
        bool zero = t >= p.lengths[p.N + n] || status == INFEASIBLE;
        auto put = [&](auto of_class) {
            for (int64 c = rank; c < p.C; c += WARP) g[c] = stored(of_class(c) * weight);
        };
        if (zero) put([](int64) { return (Real)0; });
        else if (status == EMPTY)
            put([&](int64 c) {
                Real v = real_of(x[c]);
                return (p.probabilities ? v : exp_below(v - measure.top) * measure.inverse) - (Real)(c == p.blank);
            });
        else if (status) put([](int64) { return (Real)NOT_A_NUMBER; });
        else {
            Answer answer(p, x, raw, p.losses[n]);
            put([&](int64 c) { return answer[c]; });
        }
    }
}
