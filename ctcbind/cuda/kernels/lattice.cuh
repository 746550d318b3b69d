/* Alpha and beta at the same time, from both ends to the middle and on: one block a sample, or one for each of the two.
 *
 * Labels and blanks go in pairs: pair i is label i and the blank before it, the last pair a blank alone. Beta is alpha
 * of the reversed labels in reversed time, so that one recursion serves both directions: a pair takes what its own and
 * the pair before have. A lane holds CTC_K pairs. CTC_W warps work on alpha and as many on beta, and each is one phase
 * of PHASE frames behind the warp before it, whose last label it finds in shared memory. So there is one barrier a
 * phase. Labels that are too many for the warps are taken in strips, one after the other.
 *
 * On the first half of their ways alpha and beta are written down, without the emissions of the frame; in the middle
 * frame they meet, which gives p; on the second half each, with the emissions, meets what the other has written, and
 * leaves their product, the occupancy, in its place. Where alpha and beta have a block each, on two multiprocessors,
 * the second half is a launch of its own.
 *
 * From frame to frame a warp waits for itself, so a frame must take little. Rows are as wide as the block, whatever the
 * labels, so that all places of a turn of the loop are constants beside a few pointers. Nothing is asked from frame to
 * frame: ways go on to the end of a phase, over frames that are not theirs, and lanes behind the last label work like
 * the others; what they read and write lies in margins, and nobody looks at it. */

#define WIDTH (WARP * CTC_K * CTC_W) /* 2^width_bits */
#define SETTLED 8 /* frames after which mantissas are brought back: they are no more than 5^8 off until then */

/* How many frames make a turn of the loop (TURN), and how many frames' numbers are read in advance (AHEAD): as many as
 * registers allow. Where there are many warps, one works while another waits. A warp that waits for one of its loads
 * waits for all that it has issued. So numbers of several frames are loaded together (AT_ONCE), as soon as the first of
 * those loaded before are there. */
template <class Number, bool SECOND>
struct Advance {
    static const int TURN = 1, AHEAD = 1, AT_ONCE = 1;
};
template <bool SECOND>
struct Advance<Linear, SECOND> {
    static const int TURN = CTC_K == 1 ? PHASE : CTC_K == 2 ? 8 : 4;
    static const int AHEAD = (CTC_K == 1 ? 16 : CTC_K == 2 ? 8 : 4) / (REAL_IS_DOUBLE ? 2 : 1);
    static const int AT_ONCE = AHEAD > 1 ? AHEAD / 2 : 1;
};

/* What the threads of a sample have in common. */
struct Sample {
    const Problem &p;
    int64 n;
    int L, T, middle; /* frames 0..middle are alpha's first half, T - 1..middle are beta's */
    const int *labels;

    __device__ __forceinline__ int frame(bool beta, int step) const { return beta ? T - 1 - step : step; }
    /* The step that reaches the middle. */
    __device__ __forceinline__ int turn(bool beta) const { return beta ? T - 1 - middle : middle; }
    /* Where a way has put down its pair i at a step of its first half. */
    __device__ __forceinline__ Pair *place(bool beta, int step, int i) const { return pair_at(p, n, beta, step, i); }
};

/* What labels[i] (of -1: the blank, or anything) emits on a way, from where it was put down. */
template <int WIDE>
struct LinearSource {
    const Scaled *at;

    __device__ __forceinline__ void begin(const Sample &s, int t, int i)
    {
        at = i < 0 && WIDE == 1 ? blank_spot(s.p, s.n, t) : label_spot(s.p, s.n, t, i < 0 ? 0 : i);
    }
    __device__ __forceinline__ void go(int frames) { at += frames * WIDE; }
    __device__ __forceinline__ Scaled operator[](int frames) const { return at[frames * WIDE]; }
};

/* Of any element type of Real: such samples are rare, and a kernel for each type would be compiled for them. */
static __device__ __forceinline__ Real logit_of(const void *logits, int element, int64 at)
{
    if (element == 2) return real_of(((const Half *)logits)[at]);
    if (element == 3) return real_of(((const BFloat *)logits)[at]);
    return ((const Real *)logits)[at];
}

/* The same from the logits. */
template <int>
struct LogarithmSource {
    const void *logits;
    const Measure *measure;
    int64 at, step;
    int element, t, T;

    __device__ __forceinline__ void begin(const Sample &s, int frame, int i)
    {
        logits = s.p.logits;
        measure = s.p.measures + s.n * s.p.T + frame;
        at = frame * s.p.x_t + s.n * s.p.x_n + (i < 0 ? s.p.blank : s.labels[i]);
        step = s.p.x_t;
        element = (int)s.p.element;
        t = frame;
        T = s.T;
    }
    __device__ __forceinline__ void go(int frames)
    {
        at += frames * step;
        measure += frames;
        t += frames;
    }
    __device__ __forceinline__ double operator[](int frames) const
    {
        if (t + frames < 0 || t + frames >= T) return 0; /* where a way runs over */
        Real v = logit_of(logits, element, at + frames * step), top = measure[frames].top, high = measure[frames].high;
        if (top == INF) return v == INF ? 0.0 : (double)-INF;
        return high == -INF ? (double)-INF : (double)v - (double)high;
    }
};

/* The pairs of one lane, in one direction, on one half of its way. */
template <class Number, template <int> class Source, bool SECOND>
struct Pairs {
    typedef typename Number::Emission Emission;
    typedef typename Number::Occupancy Occupancy;
    typedef Advance<Number, SECOND> Of;
    static const int TURN = Of::TURN, AHEAD = Of::AHEAD, AT_ONCE = Of::AT_ONCE, LEAD = AHEAD > 1 ? AHEAD - AT_ONCE : 1;

    const int room;    /* pair k has a label where k < room, and a blank where k <= room */
    const bool keeps;  /* all rows of its way, not those of one phase */
    Number label[CTC_K], blank[CTC_K], carry;
    int skip[CTC_K];
    Source<WIDTH> label_source[CTC_K]; /* at the first step of the turn */
    Source<1> blank_source;
    Pair *own, *other_label[CTC_K], *other_blank[CTC_K]; /* likewise; the last two for each step a row back */
    Emission of_label[AHEAD][CTC_K], of_blank[AHEAD];
    Number before_label[AHEAD][CTC_K], before_blank[AHEAD][CTC_K]; /* what the other way has left */

    __device__ __forceinline__ Pairs(const Sample &s, bool beta, int first, int from)
        : room(s.L - first), keeps(s.p.grad)
    {
        int t = s.frame(beta, from);
        own = s.place(beta, from, first);
        blank_source.begin(s, t, -1);
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            int i = first + k, at = beta ? s.L - 1 - i : i;
            label_source[k].begin(s, t, k < room ? at : -1);
            skip[k] = k < room && i && (CTC_SIMPLE || s.labels[at] != s.labels[beta ? at + 1 : at - 1]);
            if (!SECOND) continue;
            int row = s.turn(!beta) - 1;
            other_label[k] = s.place(!beta, row, k < room ? s.L - 1 - i : i); /* or where nobody writes */
            other_blank[k] = s.place(!beta, row, k <= room ? s.L - i : i);
        }
        carry = Number::zero();
        if (SECOND) resume(s, beta, first, from - 1);
        else begin(first);
    }
    /* The first half begins before the first frame, in front of everything. */
    __device__ __forceinline__ void begin(int first)
    {
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            label[k] = Number::zero();
            blank[k] = first + k == 0 ? Number::one() : Number::zero();
        }
    }
    /* The second half goes on from what the first has written in the middle. */
    __device__ __forceinline__ void resume(const Sample &s, bool beta, int first, int turn)
    {
        int back = beta ? 1 : -1;
        if (first > 0 && room >= 0) {
            Source<WIDTH> source;
            source.begin(s, s.middle, beta ? s.L - first : first - 1);
            carry = Number::load(&s.place(beta, turn, first - 1)->label).times(source[0]);
            carry.settle();
        }
        const Pair *pairs = s.place(beta, turn, first);
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            label[k] = k < room ? Number::load(&pairs[k].label).times(label_source[k][back]) : Number::zero();
            blank[k] = k <= room ? Number::load(&pairs[k].blank).times(blank_source[back]) : Number::zero();
            label[k].settle();
            blank[k].settle();
        }
    }

    /* Reads what a step of the turn (or of one after it) will need. */
    template <int BACK>
    __device__ __forceinline__ void ask(int r)
    {
        const int slot = r % AHEAD;
        of_blank[slot] = blank_source[r * BACK];
#pragma unroll
        for (int k = 0; k < CTC_K; k++) {
            of_label[slot][k] = label_source[k][r * BACK];
            if (!SECOND) continue;
            before_label[slot][k] = Number::load(&other_label[k][-r * WIDTH].label);
            before_blank[slot][k] = Number::load(&other_blank[k][-r * WIDTH].blank);
        }
    }
    template <int BACK>
    __device__ __forceinline__ void ask_first()
    {
#pragma unroll
        for (int r = 0; r < LEAD; r++) ask<BACK>(r);
    }

    /* The steps of a phase, of which `left` count. Lane 0 is given what the pair before had after each of them, from
     * `given` (null: nothing); lane 31 writes the same of its last pair to `told` (null: nobody asks). */
    template <int BACK>
    __device__ __forceinline__ void run(int left, const Scaled *given, Scaled *told, typename Number::Level level)
    {
        int first = threadIdx.x % WARP == 0;
        bool gets = first && given, tells = threadIdx.x % WARP == WARP - 1 && told;
        for (int done = 0; done < PHASE; done += TURN) {
            Number fed[TURN];
#pragma unroll
            for (int r = 0; r < TURN; r++) fed[r] = Number::zero();
            if (gets)
#pragma unroll
                for (int r = 0; r < TURN; r++) fed[r] = Number::load(given + done + r);
#pragma unroll
            for (int r = 0; r < TURN; r++) {
                const int slot = r % AHEAD;
                Number in = label[CTC_K - 1].from_before(carry, first);
                carry = fed[r];
                Number l[CTC_K], b[CTC_K];
                Occupancy of_l[CTC_K], of_b[CTC_K];
#pragma unroll
                for (int k = CTC_K - 1; k >= 0; k--) {
                    Number prior = k ? label[k - 1] : in, passed = prior.where(skip[k]);
                    l[k] = CTC_SIMPLE ? Number::add(blank[k], passed) : Number::add(label[k], blank[k], passed);
                    b[k] = Number::add(blank[k], prior);
                    label[k] = l[k].times(of_label[slot][k]);
                    blank[k] = b[k].times(of_blank[slot]);
                    if (!SECOND) continue;
                    of_l[k] = Number::both(label[k], before_label[slot][k]).occupancy(level);
                    of_b[k] = Number::both(blank[k], before_blank[slot][k]).occupancy(level);
                }
                /* A way ends here at the latest. What is read after the branch is not asked for before it, so that no
                 * lane waits for it. */
                if (AHEAD > 1 && r % AT_ONCE == 0 && left <= done + r) return;
#pragma unroll
                for (int i = 0; i < AT_ONCE && r % AT_ONCE == 0; i++) ask<BACK>(r + i + LEAD);
#pragma unroll
                for (int k = 0; k < CTC_K; k++) {
                    if (!SECOND && k <= room) Number::store(own + r * WIDTH + k, l[k], b[k]);
                    if (SECOND && k < room) *(Occupancy *)&other_label[k][-r * WIDTH].label = of_l[k];
                    if (SECOND && k <= room) *(Occupancy *)&other_blank[k][-r * WIDTH].blank = of_b[k];
                }
                if (tells) label[CTC_K - 1].store(told + done + r);
                const int settled = TURN < SETTLED ? TURN : SETTLED;
                if ((r + 1) % settled == 0)
#pragma unroll
                    for (int k = 0; k < CTC_K; k++) label[k].settle(), blank[k].settle();
            }
            blank_source.go(TURN * BACK);
            own += TURN * WIDTH;
#pragma unroll
            for (int k = 0; k < CTC_K; k++) {
                label_source[k].go(TURN * BACK);
                if (!SECOND) continue;
                other_label[k] -= TURN * WIDTH;
                other_blank[k] -= TURN * WIDTH;
            }
        }
        if (!keeps) own -= PHASE * WIDTH;
    }
};

/* Whether this block is for beta, where each way has its own. */
static __device__ __forceinline__ bool is_beta() { return CTC_WAYS == 1 && blockIdx.x % 2; }

/* Half of the block's ways. */
template <class Number, template <int> class Source, bool SECOND>
static __device__ __forceinline__ void go_half(const Sample &s, typename Number::Level level)
{
    int warp = of_warp((int)(threadIdx.x / WARP)), lane = (int)(threadIdx.x % WARP);
    bool beta = CTC_WAYS == 2 ? warp >= CTC_W : is_beta();
    warp %= CTC_W;
    int from = SECOND ? s.turn(beta) + 1 : 0, end = SECOND ? s.T : s.turn(beta) + 1;
    int longest = SECOND ? s.T - 1 - s.middle : s.T - s.middle; /* of the two ways, as (T - 1) / 2 is rounded down */
    int strips = s.L / WIDTH + 1;
    Scaled *rings = (Scaled *)(dynamic_shared + SCRATCH_BYTES) + (CTC_WAYS == 2 && beta) * CTC_W * 2 * PHASE;
    int64 edge = s.p.T + PHASE;
    Scaled *edges = s.p.edges + (s.n * 2 + beta) * 2 * edge;

    for (int strip = 0; strip < strips; strip++) {
        int left = (s.L - strip * WIDTH) / (WARP * CTC_K) + 1, used = left < CTC_W ? left : CTC_W;
        /* Between warps go two phases in turn, between strips all of a way. */
        const Scaled *given = rings + (warp - 1) * 2 * PHASE;
        Scaled *told = rings + warp * 2 * PHASE;
        int given_last = 1, told_last = 1;
        if (warp == 0) given = strip ? edges + (~strip & 1) * edge : 0, given_last = -1;
        if (warp == used - 1) told = strip + 1 < strips ? edges + (strip & 1) * edge : 0, told_last = -1;

        Pairs<Number, Source, SECOND> pairs(s, beta, strip * WIDTH + (warp * WARP + lane) * CTC_K, from);
        if (beta) pairs.template ask_first<-1>();
        else pairs.template ask_first<1>();
        int phases = (longest + PHASE - 1) / PHASE + used - 1;
        for (int phase = 0; phase < phases; phase++) {
            int turns = phase - warp, left = end - from - turns * PHASE;
            if (warp < used && turns >= 0 && left > 0) {
                const Scaled *now_given = given ? given + (turns & given_last) * PHASE : 0;
                Scaled *now_told = told ? told + (turns & told_last) * PHASE : 0;
                left = of_warp(left); /* so that nothing is known of it any more */
                if (beta) pairs.template run<-1>(left, now_given, now_told, level);
                else pairs.template run<1>(left, now_given, now_told, level);
            }
            if (used > 1) {
                __syncthreads(); /* rings: written in this phase, read in the next */
            }
        }
        __syncthreads(); /* edges, and the lattice */
    }
}

/* All of both ways, or `part` 1 or 2 of one: up to the middle, or on from there. */
template <class Number, template <int> class Source>
static __device__ __forceinline__ void solve(const Sample &s, int64 part)
{
    const Problem &p = s.p;
    int rank = (int)threadIdx.x, size = CTC_WAYS * WARP * CTC_W, states = 2 * s.L + 1, L = s.L;
    if (CTC_WAYS == 2 || part == 1) go_half<Number, Source, false>(s, Number::lowest());
    if (CTC_WAYS == 1 && part == 1) return;

    /* The middle: state i is a blank, or behind those a label. */
    auto product = [&](int i) {
        bool label = i > L;
        int at = label ? i - L - 1 : i;
        Pair *alpha = s.place(false, s.turn(false), at);
        Pair *beta = s.place(true, s.turn(true), label ? L - 1 - at : L - at);
        Source<1> source;
        source.begin(s, s.middle, label ? at : -1);
        Number of_alpha = Number::load(label ? &alpha->label : &alpha->blank).times(source[0]);
        return Number::both(of_alpha, Number::load(label ? &beta->label : &beta->blank));
    };
    typename Number::Level level = Number::lowest();
    for (int i = rank; i < states; i += size) level = Number::greater(level, product(i).level());
    level = over_block<CTC_WAYS * CTC_W>(level, Number::greater, dynamic_shared);
    Real sum = 0;
    for (int i = rank; i < states; i += size) {
        Number both = product(i);
        sum += both.above(level);
        if (!p.grad || is_beta()) continue;
        Pair *to = pair_in_middle(p, s.n, i > L ? i - L - 1 : i);
        *(typename Number::Occupancy *)(i > L ? &to->label : &to->blank) = both.occupancy(level);
    }
    sum = over_block<CTC_WAYS * CTC_W>(sum, total, dynamic_shared);
    double base = 0, more = 0, factors = 1; /* more: the product of the rows' sums, less 1; a logarithm for many rows */
    for (int t = rank; t < s.T; t += size) {
        Measure of = p.measures[s.n * p.T + t];
        if (of.high > -INF && of.high < INF) base += (double)of.high - (double)of.top;
        more = fma(more, (double)of.rest, more + (double)of.rest);
        factors *= Number::factor(offset_of(t, s.T));
        if (more > 1e200 || factors < 1e-200) {
            base -= log1p(more) + log(factors);
            more = 0;
            factors = 1;
        }
    }
    base -= log1p(more) + log(factors);
    base = over_block<CTC_WAYS * CTC_W>(base, total_double, dynamic_shared);
    bool path = level > Number::lowest() && sum > 0;
    if (rank == 0 && !is_beta()) {
        double loss = path ? -(log((double)sum) + Number::nats(level) + base) : (double)INF;
        p.losses[s.n] = loss > 0 ? (Real)loss : 0;
        if (!path) p.status[s.n] = NO_PATH;
    }
    if (p.grad && path) go_half<Number, Source, true>(s, level);
}

/* At least one block to a multiprocessor: without the 1 ptxas for sm_100 keeps to 128 registers and spills the rest. */
extern "C" __global__ void __launch_bounds__(CTC_WAYS *WARP *CTC_W, 1) ctc_lattice(const Problem p, int64 part)
{
    int64 n = blockIdx.x / (3 - CTC_WAYS);
    int L = of_warp(p.lengths[n]), T = of_warp(p.lengths[p.N + n]), status = of_warp(p.status[n] & ~NO_PATH);
    unsigned strange = (unsigned)of_warp((int)p.strange[n]);
    bool nan = status == BAD_LABELS || (status == 0 && strange == NOT_NUMBERS);
    if (nan || status || T == 0) {
        if (threadIdx.x == 0) p.losses[n] = nan ? (Real)NOT_A_NUMBER : status ? (Real)INF : 0;
        return;
    }
    Sample s = {p, n, L, T, (T - 1) / 2, p.clean + n * p.pitch};
    if (strange == FAR) solve<Logarithm, LogarithmSource>(s, part);
    else solve<Linear, LinearSource>(s, part);
}
