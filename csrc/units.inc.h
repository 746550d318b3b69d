/* The units of the states: exponents of type STATE that a run of rows shares, and how long a run may be. */

#if STATE_IS_DOUBLE
#define DEAD -1e300 /* the exponent of a state that no path has reached; its mantissa is 0 */
#define RANGE_LIMIT 900 /* rows whose used classes spread over more binades are WIDE: whole binades are kept beside */
#define BUDGET 1800 /* binades that the mantissas of one run may spread over */
/* So many of those lie below 1, the others above. The least beta may be lost below: it weighs nothing beside alpha's
 * largest. */
#define BELOW 900
#define MOST_EXPONENT 1023
#define FLUSH_BUDGET (MOST_EXPONENT - 56) /* where a factor has become 0: what it drops must not come to weigh later */
#else
#define DEAD -1e30f
#define RANGE_LIMIT FLOAT_RANGE
#define BUDGET 188
#define BELOW 100
#define MOST_EXPONENT 127
#define FLUSH_BUDGET (MOST_EXPONENT - 27)
#endif

#define OWN(array) ((STATE *)(array))
#if STATE_IS_DOUBLE && !IS_DOUBLE
#define STORE_REAL vd_store_float
#define STORE_STATES(to, a)                                                                                   \
    do {                                                                                                      \
        vd_t halves[W / SW];                                                                                  \
        vf_to_double(a, halves);                                                                              \
        for (int half = 0; half < W / SW; half++) vd_store((to) + half * SW, halves[half]);                   \
    } while (0)
#else
#define STORE_REAL SV(store)
#define STORE_STATES SV(store)
#endif

/* Arrays with room for neighbours on both sides. */
#define EDGED(base, k) ((STATE *)(base) + (k) * (w->Lp + 2 * FN(PAD)) + FN(PAD))

/* 2^n, at most 2^MOST_EXPONENT, 0 below the normal numbers. */
static inline SV(t) SFN(pow2)(SV(t) n) { return SV(pow2)(SV(min)(n, SV(set1)(MOST_EXPONENT))); }

/* Splits states into mantissas in [1, 2), w->start, and whole exponents, w->aligned. Returns how many are dead. */
static int64_t SFN(split)(FN(work) *w, const STATE *m, const STATE *exps, int64_t i0, int64_t i1)
{
    SV(t) dead = SV(set1)(0), none = SV(set1)(DEAD);
    for (int k = 0; k < 2; k++) {
        STATE *A = EDGED(w->aligned, k);
        STATE *to = OWN(w->start) + k * (w->Lp + 2 * FN(PAD)) + FN(PAD);
        const STATE *from = m + k * w->Lp;
        const STATE *E = exps + k * w->Lp;
        for (int64_t i = i0; i < i1; i += SW) {
            SV(t) a = SV(load)(from + i);
            SV(t) e = SV(max)(SV(add)(SV(load)(E + i), SV(logb)(a)), none);
            dead = SV(count_equal)(e, none, dead);
            SV(store)(A + i, e);
            SV(store)(to + i, SV(mantissa)(a));
        }
        A[i0 - 1] = A[i1] = DEAD;
        to[i0 - 1] = to[i1] = 0;
    }
    STATE lanes[SW], count = 0;
    SV(store)(lanes, dead);
    for (int j = 0; j < SW; j++) count += lanes[j];
    return (int64_t)count;
}

/* Gives each state that no path has reached the exponent of what flows into it first, wherever such states are. The
 * label before it, if that is not reached either, passes on what it gets a row later than the blank does: with the
 * exponent of that, which may be far larger, what the blank gives would be lost. */
static void SFN(lend_each)(FN(work) *w, int64_t i0, int64_t i1)
{
    STATE *l = EDGED(w->aligned, 0), *b = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0), first = DEAD, up = DEAD;
    for (int64_t i = i0; i < i1; i++) {
        STATE own = l[i], in = skip[i] == 0 && up > b[i] ? up : b[i]; /* up: label i - 1 without what was lent to it */
        if (b[i] <= DEAD) b[i] = l[i - 1];
        if (own <= DEAD) l[i] = in > DEAD ? in : b[i];
        up = own;
    }
    for (int64_t i = i0; i < i1 && first <= DEAD; i++) first = l[i] > b[i] ? l[i] : b[i];
    for (int64_t i = i0; i < i1; i++) { /* nothing flows into what is still dead: any exponent will do */
        if (l[i] <= DEAD) l[i] = first;
        if (b[i] <= DEAD) b[i] = first;
    }
}

/* The same where, as nearly always, all states past the front are dead and none behind it. */
static void SFN(lend)(FN(work) *w, int64_t front, int64_t i0, int64_t i1, int64_t dead)
{
    STATE *l = EDGED(w->aligned, 0), *b = EDGED(w->aligned, 1);
    if (front > w->L) front = w->L;
    while (front >= i0 && front < i1 && l[front] <= DEAD && b[front] <= DEAD) front--;
    int inside = front >= i0 && front < i1;
    if (!inside || 2 * (i1 - 1 - front) + (l[front] <= DEAD) != dead) {
        SFN(lend_each)(w, i0, i1);
        return;
    }
    /* What first comes past the front is what its last live state gives; a larger exponent would flush that to 0. */
    STATE unit = l[front] > DEAD ? l[front] : b[front];
    if (l[front] <= DEAD) l[front] = unit;
    for (int64_t i = front + 1; i < i1; i++) l[i] = b[i] = unit;
}

/* Notes how far below its reference each row of the block emits the blank. */
static void SFN(weigh_blanks)(FN(work) *w)
{
    STATE down[BLOCK];
    for (int r = 0; r < BLOCK; r += SW) {
        SV(t) e = SV(max)(SV(logb)(SV(load)(OWN(w->eb) + r)), SV(set1)(-RANGE_CEILING));
        SV(store)(down + r, SV(sub)(SV(set1)(0), e));
    }
    w->blanks[0] = 0;
    for (int r = 0; r < BLOCK; r += FN(SHORTEST)) {
        STATE here = (down[r] + down[r + 1]) + (down[r + 2] + down[r + 3]);
        w->blanks[r / FN(SHORTEST) + 1] = w->blanks[r / FN(SHORTEST)] + (double)here;
    }
    w->weighed = 1;
}

/* Whether paths have reached every state from i0 to i1, but for those past the last blank. */
static int SFN(all_arrived)(const FN(work) *w, const STATE *m, int64_t apart, int64_t i0, int64_t i1)
{
    SV(t) zero = SV(set1)(0), none = zero;
    STATE lanes[SW], count = 0;
    int64_t past = i1 > w->L ? 2 * (i1 - w->L) - 1 : 0;
    for (int64_t i = i0; i < i1; i += SW)
        none = SV(count_equal)(SV(load)(m + i), zero, SV(count_equal)(SV(load)(m + apart + i), zero, none));
    SV(store)(lanes, none);
    for (int j = 0; j < SW; j++) count += lanes[j];
    return (int64_t)count == past;
}

/* Binades that 2^k rows from row r on need if they are to share exponents: as many as the emissions of each may take
 * from a state; 1.6 a row, as a sum of three grows by log2(3) of them at most; and 2, as exponents are whole. */
static double SFN(need)(const FN(work) *w, int r, int k)
{
    const REAL *before = w->slot->before + r / FN(SHORTEST);
    return (double)(before[(1 << k) / FN(SHORTEST)] - before[0]) + 1.6 * (1 << k) + 2;
}

/* The same where all states are reached: a blank keeps what its own emissions leave of it, whatever those of labels
 * are, and a label receives that again in every row, from a blank at most `down` binades below it. */
static double SFN(need_of_blanks)(FN(work) *w, int r, int k, double down)
{
    const double *blanks = w->blanks + r / FN(SHORTEST);
    if (!w->weighed) SFN(weigh_blanks)(w);
    return blanks[(1 << k) / FN(SHORTEST)] - blanks[0] + w->widest + down + 1.6 * (1 << k) + 2;
}

/* Binades of `room` that such rows do not need. */
static double SFN(spare)(FN(work) *w, int r, int k, double room, double down, const STATE *m, int64_t apart,
                         int64_t i0, int64_t i1)
{
    double spare = room - SFN(need)(w, r, k), more;
    if (spare > 0 || !w->arrived || !((more = room - SFN(need_of_blanks)(w, r, k, down)) > 0)) return spare;
    if (w->arrived < 0) w->arrived = SFN(all_arrived)(w, m, apart, i0, i1);
    return w->arrived ? more : spare;
}

/* The largest k for which 2^k rows from row r on may be one run, by what is known of the rows alone; 0 where no run may
 * begin there. ragged: a run at the end of the block may have fewer than four. Where a class is at -inf, paths may be
 * left that weighed nothing before: a flat run still has them, as nothing is lost in it; in others they may have become
 * 0, so that such a row may only be the last, and run_length leaves it out. */
static int SFN(most_rows)(FN(work) *w, int r, int n, int ragged, int flat)
{
    const FN(slot) *slot = w->slot;
    if (w->grid > 0) return 0; /* exponents in steps of the grid cannot shift by binades */
    for (int k = 4; k > 1; k--) {
        int rows = 1 << k, end = r + rows, barrier = 0;
        if (r & (rows - 1) || (end > n && !(ragged && k == 2))) continue;
        if (SFN(need)(w, r, k) >= BUDGET && SFN(need_of_blanks)(w, r, k, 0) >= BUDGET) continue;
        if (slot->unusual)
            for (int t = r; t < end; t++)
                barrier |= slot->flags[t] & (flat || t == end - 1 ? FN(ROW_WIDE) : FN(ROW_WIDE) | FN(ROW_ZERO));
        if (!barrier) return k;
    }
    return 0;
}

/* How many rows may go in a run whose states all share one exponent, as they mostly can where logits are not sharp; or
 * 0. *unit receives that exponent. States that are not reached are 0 there. */
static int SFN(flat_run)(FN(work) *w, const STATE *m, const STATE *exps, int r, int most, double *unit,
                         int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    SV(t) high = SV(set1)(DEAD), low = high; /* low: the largest of the negated */
    for (int64_t at = i0; at < i1; at += SW)
        for (int64_t i = at; i <= at + Lp; i += Lp) {
            SV(t) a = SV(load)(m + i), e = SV(add)(SV(load)(exps + i), SV(logb)(a));
            high = SV(max)(high, e);
            low = SV(max)(low, SV(if_equal)(a, SV(set1)(0), SV(set1)(DEAD), SV(sub)(SV(set1)(0), e)));
        }
    double top = (double)SV(highest)(high), up = top + (double)SV(highest)(low);
    for (int k = most; k > 1; k--) {
        double spare = SFN(spare)(w, r, k, BUDGET - up, 0, m, Lp, i0, i1);
        if (!(spare > 0)) continue;
        *unit = top - rint(BUDGET - BELOW - 1.6 * (1 << k) - spare / 2);
        return 1 << k;
    }
    return 0;
}

/* Brings mantissas to one exponent, at `to`. */
static void SFN(flatten)(const STATE *m, const STATE *exps, STATE unit, STATE *to, int64_t Lp, int64_t i0, int64_t i1)
{
    SV(t) by = SV(set1)(unit);
    for (int64_t at = i0; at < i1; at += SW)
        for (int64_t i = at; i <= at + Lp; i += Lp) {
            SV(t) a = SV(load)(m + i), e = SV(add)(SV(load)(exps + i), SV(logb)(a));
            SV(store)(to + i, SV(scale)(SV(mantissa)(a), SV(sub)(e, by)));
        }
}

/* How many rows may go in a run where each state has an exponent of its own: that in w->aligned less *shift, which
 * places mantissas so that they can neither overflow nor leave the normal numbers. */
static int SFN(run_length)(FN(work) *w, int r, int most, int64_t i0, int64_t i1, double *shift)
{
    /* An emission of 0 in the last row may leave only paths whose state weighed nothing before, and was flushed. */
    if (w->slot->flags[r + (1 << most) - 1] & FN(ROW_ZERO)) most--;

    /* First over one step: each factor must be a number, and not 0 where what it multiplies could come to weigh. */
    STATE *l = EDGED(w->aligned, 0), *b = EDGED(w->aligned, 1), *low = EDGED(w->window, 0);
    STATE *below = EDGED(w->window, 1), *next = EDGED(w->window, 2); /* the largest of a few states below each pair */
    SV(t) rise = SV(set1)(0), fall = rise, own = rise, above = rise;
    l[i0 - 1] = l[i0] < b[i0] ? l[i0] : b[i0];
    for (int64_t i = i0; i < i1; i += SW) {
        SV(t) a = SV(load)(l + i), c = SV(load)(b + i), least = SV(min)(a, c), greatest = SV(max)(a, c);
        SV(t) in = SV(load)(l + i - 1);
        SV(store)(low + i, least);
        SV(store)(below + i + 1, greatest);
        own = SV(max)(own, SV(sub)(c, a));
        above = SV(max)(above, SV(sub)(a, c));
        rise = SV(max)(rise, SV(sub)(in, least));
        fall = SV(max)(fall, SV(sub)(greatest, in));
    }
    l[i0 - 1] = b[i1] = l[i1] = below[i0] = DEAD;
    for (int64_t i = i0 - FN(PAD); i < i0; i += SW) {
        SV(store)(below + i, SV(set1)(DEAD));
        SV(store)(next + i, SV(set1)(DEAD));
    }
    double budget = BUDGET, ceiling = BUDGET - BELOW;
    if (SV(highest)(SV(max)(fall, above)) >= MOST_EXPONENT) budget = FLUSH_BUDGET, ceiling = budget / 2;
    if (SV(highest)(SV(max)(rise, own)) >= MOST_EXPONENT) return 1;

    /* How far any state stands above those that it can reach within the run: by so much their mantissas may grow. One
     * row more than the run has counts, as beta comes from there in the run's exponents. */
    int best = 0;
    double down = (double)SV(highest)(above);
    const STATE *start = OWN(w->start) + FN(PAD);
    for (int k = 2; k <= most; k++) {
        SV(t) growth = own;
        for (int64_t i = i0; i < i1; i += SW) {
            SV(t) m = SV(max)(SV(load)(below + i), SV(load)(below + i - (1 << k) / 2));
            for (int j = 1; k == 2 && j < 5; j++) m = SV(max)(m, SV(load)(below + i - j));
            SV(store)(next + i, m);
            growth = SV(max)(growth, SV(sub)(m, SV(load)(low + i)));
        }
        double up = (double)SV(highest)(growth);
        double spare = SFN(spare)(w, r, k, budget - up, down, start, w->Lp + 2 * FN(PAD), i0, i1);
        if (!(spare > 0)) break;
        best = k;
        *shift = rint(ceiling - up - 1.6 * (1 << k) - spare / 2);
        STATE *swap = below;
        below = next;
        next = swap;
    }
    return best ? 1 << best : 1;
}

/* Takes back from dead states the exponents that lend gave them. */
static void SFN(bury)(FN(work) *w, int64_t i0, int64_t i1)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = i0; i < i1; i += SW) {
            STATE *A = EDGED(w->aligned, k) + i;
            SV(store)(A, SV(if_equal)(SV(load)(EDGED(w->start, k) + i), SV(set1)(0), SV(set1)(DEAD), SV(load)(A)));
        }
}
