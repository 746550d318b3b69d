/* Alpha and beta at the same time, from both ends to the middle and on: one block a sample.
 *
 * Labels and blanks go in pairs: pair i is label i and the blank before it, the last pair a blank alone. Beta is alpha
 * of the reversed labels in reversed time, so that one recursion serves both directions: a pair takes what its own and
 * the pair before have. A lane holds CTC_K pairs; half of the warps work on alpha, half on beta, and each warp of a half
 * is one phase of PHASE frames behind the warp before it, whose last label it finds in shared memory. So there is one
 * barrier a phase. Labels that are too many for the warps are taken in strips, one after the other.
 *
 * On the first half of their ways alpha and beta are written down; in the middle frame they meet, which gives p; on the
 * second half each meets what the other has written, and leaves their product, the occupancy, in its place. Alpha has
 * the emission of its own frame in it, beta has not. */

#define PHASE 16
#if CTC_K
#define SETTLED 8 /* frames after which mantissas are brought back: they are no more than 5^8 off until then */
/* Frames that are read in advance: as many as registers allow. Where there are many warps, they fill each other's waits.
 * Several are asked for at once: a warp waits for all that it has asked for, the last too, and so but once for these. */
#define AHEAD (CTC_K == 1 ? 8 : CTC_K == 2 ? 2 : 1)
#define AT_ONCE (CTC_K == 1 ? 4 : 1)
#define LEAD (AT_ONCE > 1 ? AHEAD - AT_ONCE : AHEAD)
#define LATTICE_THREADS (CTC_K == 1 ? 256 : 512)

static __device__ __forceinline__ bool in_logarithms(const Problem &p, int64 n, int64 T)
{
    double most = (double)__int_as_float((int)p.most[n]);
    return (2.9 * most + 2) * (double)T >= LIVE; /* binades below the largest used logit, and paths that add up */
}

/* What the threads of a sample have in common. */
struct Sample {
    const Problem &p;
    int64 n, L, T, middle; /* frames 0..middle are alpha's first half, T - 1..middle are beta's */
    const int *labels;
    const Scaled *emitted; /* [T][columns] */
    Scaled *lattice;       /* [rows][2][pitch] */

    /* The lattice's rows for alpha and beta of a frame. The middle has one for each; its occupancies come last. */
    __device__ __forceinline__ Scaled *alpha_row(int64 t) const { return lattice + (p.grad ? t : 0) * 2 * p.pitch; }
    __device__ __forceinline__ Scaled *beta_row(int64 t) const { return lattice + (p.grad ? t + 1 : 1) * 2 * p.pitch; }
};

/* What labels[i] (of -1: the blank) emits: from where it was put down, or from the logits again. */
struct LinearSource {
    const Scaled *row;
    __device__ __forceinline__ LinearSource(const Sample &s, int64 t) : row(s.emitted + t * s.p.columns) {}
    static __device__ __forceinline__ int column(const Sample &s, int64 i)
    {
        if (s.p.sparse) return (int)(i < 0 ? s.p.columns - 1 : i);
        return (int)(i < 0 ? s.p.blank : s.labels[i]);
    }
    __device__ __forceinline__ Scaled operator[](int column) const { return row[column]; }
    static __device__ __forceinline__ Scaled none()
    {
        Scaled none = {};
        none.e = DEAD;
        return none;
    }
};

struct LogarithmSource {
    const X *x;
    Real high, top;
    __device__ __forceinline__ LogarithmSource(const Sample &s, int64 t)
        : x(s.p.logits + t * s.p.x_t + s.n * s.p.x_n), high(s.p.high[s.n * s.p.T + t]), top(s.p.top[s.n * s.p.T + t])
    {
    }
    static __device__ __forceinline__ int column(const Sample &s, int64 i)
    {
        return (int)(i < 0 ? s.p.blank : s.labels[i]);
    }
    __device__ __forceinline__ double operator[](int column) const
    {
        Real v = real_of(x[column]);
        if (top == INF) return v == INF ? 0.0 : (double)-INF;
        return high == -INF ? (double)-INF : (double)v - (double)high;
    }
    static __device__ __forceinline__ double none() { return -INF; }
};

/* The pairs of one lane, in one direction. */
template <class Number, class Source>
struct Pairs {
    typedef typename Number::Emission Emission;
    const Sample &s;
    const bool beta, second; /* the direction; on the second half of its way */
    int64 first;             /* the first pair, counted in the direction */
    Number label[CTC_K], blank[CTC_K], carry;
    bool has[CTC_K], has_blank[CTC_K], skip[CTC_K];
    int column[CTC_K], blank_column, place[CTC_K], blank_place[CTC_K]; /* in a row of emissions, of the lattice */
    Emission of_label[AHEAD][CTC_K], of_blank[AHEAD];
    Number other_label[AHEAD][CTC_K], other_blank[AHEAD][CTC_K];

    __device__ __forceinline__ Pairs(const Sample &sample, bool beta_, bool second_, int64 first_)
        : s(sample), beta(beta_), second(second_), first(first_)
    {
        blank_column = Source::column(s, -1);
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            int64 i = first + k;
            has[k] = i < s.L;
            has_blank[k] = i <= s.L;
            skip[k] = has[k] && i && (s.p.simple || s.labels[own(i)] != s.labels[own(i - 1)]);
            place[k] = has[k] ? (int)own(i) : 0;
            blank_place[k] = has_blank[k] ? (int)own_blank(i) : 0;
            column[k] = has[k] ? Source::column(s, own(i)) : blank_column;
        }
    }
    __device__ __forceinline__ int64 own(int64 i) const { return beta ? s.L - 1 - i : i; }
    __device__ __forceinline__ int64 own_blank(int64 i) const { return s.p.pitch + (beta ? s.L - i : i); }
    __device__ __forceinline__ int64 frame(int64 step) const { return beta ? s.T - 1 - step : step; }
    __device__ __forceinline__ Scaled *row(int64 t) const { return beta != second ? s.beta_row(t) : s.alpha_row(t); }

    /* The first half begins before the first frame, in front of everything. */
    __device__ __forceinline__ void begin()
    {
        carry = Number::zero();
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            label[k] = Number::zero();
            blank[k] = first + k == 0 ? Number::one() : Number::zero();
        }
    }
    /* The second half goes on from what the first has written in the middle. */
    __device__ __forceinline__ void resume()
    {
        const Scaled *from = beta ? s.beta_row(s.middle) : s.alpha_row(s.middle);
        Source source(s, s.middle);
        carry = Number::zero();
        if (first > 0 && first <= s.L) {
            carry = Number::load(from + own(first - 1));
            if (beta) carry = carry.times(source[Source::column(s, own(first - 1))]);
            carry.settle();
        }
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            label[k] = has[k] ? Number::load(from + place[k]) : Number::zero();
            blank[k] = has_blank[k] ? Number::load(from + blank_place[k]) : Number::zero();
            if (beta) {
                label[k] = label[k].times(has[k] ? source[column[k]] : Source::none());
                blank[k] = blank[k].times(source[blank_column]);
            }
            label[k].settle();
            blank[k].settle();
        }
    }
    /* Reads in advance what a step will need. */
    __device__ __forceinline__ void ask(int64 step, Emission *labels, Emission &of_blanks, Number *others,
                                        Number *other_blanks) const
    {
        int64 t = frame(step);
        Source source(s, t);
        of_blanks = source[blank_column];
#pragma unroll
        for (int k = 0; k < CTC_K; k++) labels[k] = has[k] ? source[column[k]] : Source::none();
        if (!second) return;
        const Scaled *from = row(t);
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            if (has[k]) others[k] = Number::load(from + place[k]);
            if (has_blank[k]) other_blanks[k] = Number::load(from + blank_place[k]);
        }
    }
    __device__ __forceinline__ void ask_first(int64 from, int64 end)
    {
#pragma unroll
        for (int r = 0; r < LEAD; r++)
            if (from + r < end) ask(from + r, of_label[r], of_blank[r], other_label[r], other_blank[r]);
    }

    /* The steps from..to - 1 of a way that ends before `end`; a phase, but for the last. Lane 0 is given what the
     * pair before had after each of them, from `before` (null: nothing), lane 31 writes the same of its last pair to `after`
     * (null: nobody asks). */
    __device__ __forceinline__ void run(int64 from, int64 to, int64 end, const Scaled *before, Scaled *after,
                                        typename Number::Level level)
    {
        int lane = (int)(threadIdx.x % WARP);
        Number reads = before && from + lane < to ? Number::load(before + lane) : Number::zero(); /* a frame's each */
        reads = reads.of_lane(lane); /* so that the wait is here */
        for (int64 group = from; group < to; group += AHEAD) {
#pragma unroll
            for (int r = 0; r < AHEAD; r++) {
                int64 step = group + r, t = frame(step);
                if (step >= to) break; /* the whole warp does */
                Number in = label[CTC_K - 1].shifted_up();
                if (lane == 0) in = carry;
                if (before) carry = reads.of_lane((int)(step - from));
                Scaled *at = row(t);
                bool keep = second || s.p.grad || t == s.middle;
#pragma unroll
                for (int k = CTC_K - 1; k >= 0; k--) {
                    Number prior = k ? label[k - 1] : in, stay = s.p.simple ? Number::zero() : label[k];
                    Number l = Number::add(stay, blank[k], skip[k] ? prior : Number::zero());
                    Number b = Number::add(blank[k], prior);
                    label[k] = l.times(of_label[r][k]);
                    blank[k] = b.times(of_blank[r]);
                    if (!keep) continue;
                    if (!beta) l = label[k], b = blank[k];
                    if (second) {
                        if (has[k]) Number::both(l, other_label[r][k]).occupy(at + place[k], level);
                        if (has_blank[k]) Number::both(b, other_blank[r][k]).occupy(at + blank_place[k], level);
                    } else {
                        if (has[k]) l.store(at + place[k]);
                        if (has_blank[k]) b.store(at + blank_place[k]);
                    }
                }
                if (lane == WARP - 1 && after) label[CTC_K - 1].store(after + (step - from));
#pragma unroll
                for (int i = LEAD; i < LEAD + AT_ONCE && r % AT_ONCE == 0; i++) {
                    int room = (r + i) % AHEAD;
                    if (step + i < end) ask(step + i, of_label[room], of_blank[room], other_label[room], other_blank[room]);
                }
            }
            if ((group - from) % SETTLED != SETTLED - AHEAD) continue;
#pragma unroll
            for (int k = 0; k < CTC_K; k++) label[k].settle(), blank[k].settle();
        }
    }
};

/* Half of both ways. */
template <class Number, class Source, bool SECOND>
static __device__ __forceinline__ void go_half(const Sample &s, typename Number::Level level)
{
    int warps = (int)(blockDim.x / WARP / 2), beta = (int)(threadIdx.x / WARP) >= warps;
    int warp = (int)(threadIdx.x / WARP) - (beta ? warps : 0), lane = (int)(threadIdx.x % WARP);
    int64 turn = beta ? s.T - 1 - s.middle : s.middle; /* the step that reaches the middle */
    int64 from = SECOND ? turn + 1 : 0, end = SECOND ? s.T : turn + 1;
    int64 longest = SECOND ? s.T - 1 - s.middle : s.T - s.middle; /* of the two ways */
    int64 width = (int64)warps * WARP * CTC_K, strips = s.L / width + 1;
    Scaled *rings = (Scaled *)(dynamic_shared + SCRATCH_BYTES) + (int64)beta * warps * 2 * PHASE;
    Scaled *edges = s.p.edges + (s.n * 2 + beta) * 2 * s.p.T;

    if (longest < s.middle + 1 && !SECOND) longest = s.middle + 1;
    if (longest < s.middle && SECOND) longest = s.middle;
    for (int64 strip = 0; strip < strips; strip++) {
        int64 left = (s.L - strip * width) / (WARP * CTC_K) + 1;
        int used = left < warps ? (int)left : warps;
        Pairs<Number, Source> pairs(s, beta, SECOND, strip * width + (warp * WARP + lane) * CTC_K);
        if (warp < used) {
            if (SECOND) pairs.resume();
            else pairs.begin();
            pairs.ask_first(from, end);
        }
        int64 phases = (longest + PHASE - 1) / PHASE + used - 1;
        for (int64 phase = 0; phase < phases; phase++) {
            int64 turns = phase - warp, at = from + turns * PHASE;
            if (warp < used && turns >= 0 && at < end) {
                const Scaled *before = rings + ((warp - 1) * 2 + (turns & 1)) * PHASE;
                Scaled *after = rings + (warp * 2 + (turns & 1)) * PHASE;
                if (warp == 0) before = strip ? edges + (~strip & 1) * s.p.T + at : 0;
                if (warp == used - 1) after = strip + 1 < strips ? edges + (strip & 1) * s.p.T + at : 0;
                pairs.run(at, at + PHASE < end ? at + PHASE : end, end, before, after, level);
            }
            __syncthreads(); /* rings: written in this phase, read in the next */
        }
    }
}

template <class Number, class Source>
static __device__ __forceinline__ void solve(const Sample &s)
{
    const Problem &p = s.p;
    int64 rank = threadIdx.x, size = blockDim.x;
    go_half<Number, Source, false>(s, Number::lowest()); /* ends with a barrier */

    const Scaled *alpha = s.alpha_row(s.middle), *beta = s.beta_row(s.middle);
    typename Number::Level level = Number::lowest();
    for (int64 i = rank; i < 2 * s.L + 1; i += size) {
        int64 at = i <= s.L ? p.pitch + i : i - s.L - 1;
        level = Number::greater(level, Number::both(Number::load(alpha + at), Number::load(beta + at)).level());
    }
    level = over_block(level, Number::greater, dynamic_shared);
    Real sum = 0;
    for (int64 i = rank; i < 2 * s.L + 1; i += size) {
        int64 at = i <= s.L ? p.pitch + i : i - s.L - 1;
        Number product = Number::both(Number::load(alpha + at), Number::load(beta + at));
        sum += product.above(level);
        if (p.grad) product.occupy(s.lattice + (p.rows - 1) * 2 * p.pitch + at, level);
    }
    sum = over_block(sum, total, dynamic_shared);
    double base = 0;
    for (int64 t = rank; t < s.T; t += size)
        base += p.base[s.n * p.T + t] - Number::log_of_unit(unit_of(p, s.n, t, s.T));
    base = over_block(base, total_double, dynamic_shared);
    bool path = level > Number::lowest() && sum > 0;
    if (rank == 0) {
        double loss = path ? -(log((double)sum) + Number::nats(level) + base) : (double)INF;
        p.losses[s.n] = loss > 0 ? (Real)loss : 0;
        if (!path) p.status[s.n] = NO_PATH;
    }
    if (p.grad && path) go_half<Number, Source, true>(s, level);
}

/* At least one block to a multiprocessor: without the 1 ptxas for sm_100 keeps to 128 registers and spills the rest. */
extern "C" __global__ void __launch_bounds__(LATTICE_THREADS, 1) ctc_lattice(const Problem p)
{
    int64 n = blockIdx.x, T = p.lengths[p.N + n];
    int status = p.status[n];
    bool nan = status == BAD_LABELS || (status == 0 && p.most[n] == ~0u);
    if (nan || status || T == 0) {
        if (threadIdx.x == 0) p.losses[n] = nan ? (Real)NOT_A_NUMBER : status ? (Real)INF : 0;
        return;
    }
    Sample s = {p, n, p.lengths[n], T, (T - 1) / 2, p.clean + n * p.pitch, p.emitted + n * p.T * p.columns,
                p.lattice + n * p.rows * 2 * p.pitch};
    if (in_logarithms(p, n, T)) solve<Logarithm, LogarithmSource>(s);
    else solve<Linear, LinearSource>(s);
}
#endif
