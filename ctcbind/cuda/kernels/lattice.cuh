/* Alpha and beta at the same time, from both ends to the middle and on.
 *
 * Labels and blanks go in pairs: pair i is label i and the blank before it, the last pair a blank alone. Beta is alpha
 * of the reversed labels in reversed time, so that one recursion serves both directions: a pair takes what its own and
 * the pair before have. A lane holds one pair. CTC_W warps work on alpha and as many on beta, and each is one phase of
 * PHASE frames behind the warp before it, whose last label it finds in shared memory. So there is one barrier a phase.
 * Both share a block (CTC_WAYS 2), or each has one of its own, on two multiprocessors. Then labels may be too many for
 * the warps of a block: they are taken in strips, each by a block of its own, which goes on as far as the block of the
 * strip before it has left word of its last label, in memory.
 *
 * On the first half of their ways alpha and beta are written down, without the emissions of the frame; in the middle
 * frame they meet, which gives p; on the second half each, with the emissions, meets what the other has written, and
 * leaves their product, the occupancy, in its place. Where they have a block each, the second half is a launch of its
 * own.
 *
 * From frame to frame a warp waits for itself, so a frame must take little. Rows are as wide as the block, whatever the
 * labels, so that all places of a turn of the loop are constants beside a few pointers. Nothing is asked from frame to
 * frame: ways go on to the end of a phase, over frames that are not theirs, and lanes behind the last label work like
 * the others; what they read and write lies in margins, and nobody looks at it. */

#define WIDTH (WARP * CTC_W) /* 2^width_bits */

/* How many frames make a turn of the loop (TURN), and how many frames' numbers are read in advance (AHEAD): as many as
 * registers allow. A warp that waits for one of its loads waits for all that it has issued. So numbers of several
 * frames are loaded together (AT_ONCE), as soon as the first of those loaded before are there. */
template <class Number>
struct Advance {
    static const int TURN = 1, AHEAD = 1, AT_ONCE = 1;
};
template <>
struct Advance<Linear> {
    static const int TURN = PHASE, AHEAD = REAL_IS_DOUBLE ? 8 : 16, AT_ONCE = AHEAD / 2;
};

/* What the threads of a sample have in common. */
struct Sample {
    const Problem &p;
    int64 n;
    int L, T, middle; /* frames 0..middle are alpha's first half, T - 1..middle are beta's */
    const int *labels;
    bool beta; /* whether this block is for beta, where each way has its own */
    int strip; /* of labels: this block's */

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

/* The pair of one lane, in one direction, on one half of its way. */
template <class Number, template <int> class Source, bool SECOND>
struct Lane {
    typedef typename Number::Emission Emission;
    typedef typename Number::Occupancy Occupancy;
    typedef Advance<Number> Of;
    static const int TURN = Of::TURN, AHEAD = Of::AHEAD, AT_ONCE = Of::AT_ONCE, LEAD = AHEAD > 1 ? AHEAD - AT_ONCE : 1;
    /* Past the end of a way less than AT_ONCE rows are written, and less than LEAD + AT_ONCE read. */
    static_assert(AT_ONCE - 1 + LEAD + AT_ONCE - 1 <= MARGIN, "two ways meet in a margin");

    const int room;    /* there is a label where it is positive, and a blank where it is not negative */
    const bool keeps;  /* all rows of its way, not those of one phase */
    const bool first;  /* of its warp */
    Number label, blank, carry;
    int skip;
    Source<WIDTH> label_source; /* at the first step of the turn */
    Source<1> blank_source;
    Pair *own, *other_label, *other_blank; /* likewise; the last two for each step a row back */
    Emission of_label[AHEAD], of_blank[AHEAD];
    Number before_label[AHEAD], before_blank[AHEAD]; /* what the other way has left */

    __device__ __forceinline__ Lane(const Sample &s, bool beta, int i, int from)
        : room(s.L - i), keeps(s.p.grad), first(threadIdx.x % WARP == 0)
    {
        int t = s.frame(beta, from), at = beta ? s.L - 1 - i : i;
        own = s.place(beta, from, i);
        blank_source.begin(s, t, -1);
        label_source.begin(s, t, room > 0 ? at : -1);
        skip = room > 0 && i && (CTC_SIMPLE || s.labels[at] != s.labels[beta ? at + 1 : at - 1]);
        carry = Number::zero();
        if (SECOND) {
            int row = s.turn(!beta) - 1;
            other_label = s.place(!beta, row, room > 0 ? s.L - 1 - i : i); /* or where nobody writes */
            other_blank = s.place(!beta, row, room >= 0 ? s.L - i : i);
            resume(s, beta, i, from - 1);
        } else { /* before the first frame, in front of everything */
            label = Number::zero();
            blank = i == 0 ? Number::one() : Number::zero();
        }
    }
    /* The second half goes on from what the first has written in the middle. */
    __device__ __forceinline__ void resume(const Sample &s, bool beta, int i, int turn)
    {
        int back = beta ? 1 : -1;
        if (i > 0 && room >= 0) {
            Source<WIDTH> source;
            source.begin(s, s.middle, beta ? s.L - i : i - 1);
            carry = Number::load(&s.place(beta, turn, i - 1)->label).times(source[0]);
            carry.settle();
        }
        const Pair *pair = s.place(beta, turn, i);
        label = room > 0 ? Number::load(&pair->label).times(label_source[back]) : Number::zero();
        blank = room >= 0 ? Number::load(&pair->blank).times(blank_source[back]) : Number::zero();
        label.settle();
        blank.settle();
    }

    /* Reads what a step of the turn (or of one after it) will need. */
    template <int BACK>
    __device__ __forceinline__ void ask(int r)
    {
        const int slot = r % AHEAD;
        of_blank[slot] = blank_source[r * BACK];
        of_label[slot] = label_source[r * BACK];
        if (!SECOND) return;
        before_label[slot] = Number::load(&other_label[-r * WIDTH].label);
        before_blank[slot] = Number::load(&other_blank[-r * WIDTH].blank);
    }
    template <int BACK>
    __device__ __forceinline__ void ask_first()
    {
#pragma unroll
        for (int r = 0; r < LEAD; r++) ask<BACK>(r);
    }

    /* The steps of a phase, of which `left` count. Lane 0 takes what the pair before had after each of them from
     * `given`; lane 31 writes the same of its pair to `told`. */
    template <int BACK>
    __device__ __forceinline__ void run(int left, const Scaled *given, Scaled *told, typename Number::Level level)
    {
        bool last = threadIdx.x % WARP == WARP - 1;
        for (int done = 0; done < PHASE; done += TURN) {
#pragma unroll
            for (int r = 0; r < TURN; r++) {
                const int slot = r % AHEAD;
                Number before = carry;
                if (first) carry = Number::load(given + done + r);
                Number prior = label.from_before(before, first), passed = prior.where(skip);
                Number l = CTC_SIMPLE ? Number::add(blank, passed) : Number::add(label, blank, passed);
                Number b = Number::add(blank, prior);
                label = l.times(of_label[slot]);
                blank = b.times(of_blank[slot]);
                Occupancy of_l, of_b;
                if (SECOND) {
                    of_l = Number::both(label, before_label[slot]).occupancy(level);
                    of_b = Number::both(blank, before_blank[slot]).occupancy(level);
                }
                /* A way ends here at the latest. What is read after the branch is not asked for before it, so that no
                 * lane waits for it. */
                if (r % AT_ONCE == 0 && left <= done + r) return;
#pragma unroll
                for (int i = 0; i < AT_ONCE && r % AT_ONCE == 0; i++) ask<BACK>(r + i + LEAD);
                if (!SECOND && room >= 0) Number::store(own + r * WIDTH, l, b);
                if (SECOND && room > 0) *(Occupancy *)&other_label[-r * WIDTH].label = of_l;
                if (SECOND && room >= 0) *(Occupancy *)&other_blank[-r * WIDTH].blank = of_b;
                if (last) label.store(told + done + r);
            }
            label.settle(); /* mantissas, which are no more than 5^16 off until then */
            blank.settle();
            blank_source.go(TURN * BACK);
            label_source.go(TURN * BACK);
            own += TURN * WIDTH;
            if (!SECOND) continue;
            other_label -= TURN * WIDTH;
            other_blank -= TURN * WIDTH;
        }
        if (!keeps) own -= PHASE * WIDTH;
    }
};

/* Between blocks that run at the same time. */
static __device__ __forceinline__ void leave_word(Word *to, Word v)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" : : "l"(to), "l"(v) : "memory");
#else
    __atomic_store_n(to, v, __ATOMIC_RELAXED);
#endif
}
static __device__ __forceinline__ Word word_at(const Word *from)
{
#ifdef __CUDA_ARCH__
    Word v;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
    return v;
#else
    return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}

/* What the last label of a strip has had after each frame of half a way, from its block to that of the next: a word is
 * there as soon as it is not ABSENT, and each is whole by itself, so that no two have an order to keep. */
template <int WORDS>
struct Edge {
    const int frame; /* of the phase, this lane's, if it has one */
    Word *at;
    Word heard[WORDS] = {};

    /* Behind strip `strip`, for lanes from `first` on. */
    __device__ __forceinline__ Edge(const Sample &s, bool beta, int strip, bool second, int first)
        : frame((int)(threadIdx.x % WARP) - first),
          at(edge_at(s.p, s.n, second, beta, strip) + frame * (int)(sizeof(Scaled) / sizeof(Word)))
    {
    }
    __device__ __forceinline__ bool has(int frames) const { return frame >= 0 && frame < PHASE && frame < frames; }
    __device__ __forceinline__ void go() { at += PHASE * (sizeof(Scaled) / sizeof(Word)); }

    /* Leaves the numbers of the first `left` frames of a phase. */
    __device__ __forceinline__ void tell(const Scaled *told, int left)
    {
        __syncwarp(); /* the last lane has written them */
#pragma unroll
        for (int k = 0; k < WORDS; k++)
            if (has(left)) leave_word(at + k, ((const Word *)(told + frame))[k]);
        go();
    }

    /* Asks for the numbers of a phase: whether they are there is seen when they are needed. */
    __device__ __forceinline__ void ask(int left)
    {
#pragma unroll
        for (int k = 0; k < WORDS; k++) heard[k] = has(left) ? word_at(at + k) : 0;
    }
    /* Waits for them, and asks for those of the next phase. */
    __device__ __forceinline__ void hear(Scaled *given, int left)
    {
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
            while (heard[k] == ABSENT) {
                __nanosleep(20);
                heard[k] = word_at(at + k);
            }
            if (has(PHASE)) ((Word *)(given + frame))[k] = heard[k];
        }
        __syncwarp(); /* the first lane reads them */
        go();
        ask(left - PHASE);
    }
};

/* Half of the block's ways. */
template <class Number, template <int> class Source, bool SECOND>
static __device__ __forceinline__ void go_half(const Sample &s, typename Number::Level level)
{
    int warp = of_warp((int)(threadIdx.x / WARP)), lane = (int)(threadIdx.x % WARP);
    bool beta = CTC_WAYS == 2 ? warp >= CTC_W : s.beta;
    warp %= CTC_W;
    int from = SECOND ? s.turn(beta) + 1 : 0, end = SECOND ? s.T : s.turn(beta) + 1;
    int longest = SECOND ? s.T - 1 - s.middle : s.T - s.middle; /* of the two ways, as (T - 1) / 2 is rounded down */
    int before = s.strip * WIDTH, used = min((s.L - before) / WARP + 1, CTC_W);
    /* Between warps go two phases in turn. Ring w is what warp w is given. */
    Scaled *rings = (Scaled *)(dynamic_shared + SCRATCH_BYTES) + (CTC_WAYS == 2 && beta) * (CTC_W + 1) * 2 * PHASE;
    Scaled *given = rings + warp * 2 * PHASE, *told = given + 2 * PHASE;
    bool hears = warp == 0 && s.strip > 0, tells = warp == CTC_W - 1 && s.L >= before + WIDTH;
    Edge<Number::WORDS> before_it(s, beta, s.strip - 1, SECOND, WARP - PHASE), behind_it(s, beta, s.strip, SECOND, 0);
    if (hears) before_it.ask(end - from);
    else if (warp == 0 && lane == 0)
        for (int r = 0; r < 2 * PHASE; r++) Number::zero().store(given + r);

    Lane<Number, Source, SECOND> pair(s, beta, before + warp * WARP + lane, from);
    if (beta) pair.template ask_first<-1>();
    else pair.template ask_first<1>();
    int phases = (longest + PHASE - 1) / PHASE + used - 1;
    for (int phase = 0; phase < phases; phase++) {
        int turn = phase - warp, left = end - from - turn * PHASE;
        if (warp < used && turn >= 0 && left > 0) {
            int slot = (turn & 1) * PHASE;
            left = of_warp(left); /* so that nothing is known of it any more */
            if (hears) before_it.hear(given + slot, left);
            if (beta) pair.template run<-1>(left, given + slot, told + slot, level);
            else pair.template run<1>(left, given + slot, told + slot, level);
            if (tells) behind_it.tell(told + slot, left);
        }
        if (used > 1) {
            __syncthreads(); /* rings: written in this phase, read in the next */
        }
    }
    __syncthreads(); /* the lattice */
}

/* All of both ways, or `part` 1 or 2 of one: up to the middle, or on from there. */
template <class Number, template <int> class Source>
static __device__ __forceinline__ void solve(const Sample &s, int64 part)
{
    const Problem &p = s.p;
    int rank = (int)threadIdx.x, size = CTC_WAYS * WARP * CTC_W, states = 2 * s.L + 1, L = s.L;
    bool leads = !s.beta && s.strip == 0; /* of the blocks of the sample */
    if (CTC_WAYS == 2 || part == 1) go_half<Number, Source, false>(s, Number::lowest());
    if (CTC_WAYS == 1 && (part == 1 || (!p.grad && !leads))) return;

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
        if (!p.grad || !leads) continue;
        Pair *to = pair_in_middle(p, s.n, i > L ? i - L - 1 : i);
        *(typename Number::Occupancy *)(i > L ? &to->label : &to->blank) = both.occupancy(level);
    }
    sum = over_block<CTC_WAYS * CTC_W>(sum, total, dynamic_shared);
    bool path = level > Number::lowest() && sum > 0;
    if (leads) {
        /* more: the product of the rows' sums, less 1; a logarithm for many rows */
        double base = 0, more = 0, factors = 1;
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
        if (rank == 0) {
            double loss = path ? -(log((double)sum) + Number::nats(level) + base) : (double)INF;
            p.losses[s.n] = loss > 0 ? (Real)loss : 0;
            if (!path) p.status[s.n] = NO_PATH;
        }
    }
    if (p.grad && path) go_half<Number, Source, true>(s, level);
}

/* At least one block to a multiprocessor: without the 1 ptxas for sm_100 keeps to 128 registers and spills the rest. */
extern "C" __global__ void __launch_bounds__(CTC_WAYS *WARP *CTC_W, 1) ctc_lattice(const Problem p, int64 part)
{
    int block = (int)blockIdx.x, strips = CTC_WAYS == 1 ? (int)p.strips : 1;
    if (strips > 1) { /* a block waits for those before it: their numbers are those in which they have begun */
        int *number = (int *)dynamic_shared;
        if (threadIdx.x == 0) *number = (int)atomicAdd(p.tickets + part - 1, 1u);
        __syncthreads(); /* the number */
        block = of_warp(*number);
    }
    int strip = block % strips, way = block / strips;
    bool beta = CTC_WAYS == 1 && way % 2;
    int64 n = CTC_WAYS == 1 ? way / 2 : way;
    int L = of_warp(p.lengths[n]), T = of_warp(p.lengths[p.N + n]), status = of_warp(p.status[n] & ~NO_PATH);
    unsigned strange = (unsigned)of_warp((int)p.strange[n]);
    bool nan = status == BAD_LABELS || (status == 0 && strange == NOT_NUMBERS);
    if (nan || status || T == 0) {
        if (threadIdx.x == 0 && !beta && strip == 0) p.losses[n] = nan ? (Real)NOT_A_NUMBER : status ? (Real)INF : 0;
        return;
    }
    if (strip > L / WIDTH) return;
    Sample s = {p, n, L, T, (T - 1) / 2, p.clean + n * p.pitch, beta, strip};
    if (strange == FAR) solve<Logarithm, LogarithmSource>(s, part);
    else solve<Linear, LinearSource>(s, part);
}
