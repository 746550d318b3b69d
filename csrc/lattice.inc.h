/* The recursions over a block of rows, run by run. */

/* A run of one row: no limit on how far neighbours stand apart, as each sum has a unit of its own. */
static void SFN(alpha_alone)(FN(work) *w, STATE *to, int r, STATE *exps, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *A = EDGED(w->aligned, 0), *B = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0);
    const STATE *ml = OWN(w->start) + FN(PAD), *mb = ml + Lp + 2 * FN(PAD), *em = OWN(w->em) + r * Lp;
    SV(t) stay = SV(set1)(w->s->simple ? 2 * DEAD : 0);
    /* The product with beta must stay a normal number: the emission goes down from half its range above 1. */
    SV(t) lift = SV(set1)(RANGE_LIMIT / 2);
    SV(t) before = SV(set1)(0), up_by = SFN(pow2)(lift), blank = SV(mul)(SV(set1)(OWN(w->eb)[r]), up_by);
    for (int64_t i = i0; i < i1; i += SW) {
        SV(t) ea = SV(add)(SV(load)(A + i), stay), eb = SV(load)(B + i), eu = SV(load)(A + i - 1);
        SV(t) es = SV(add)(eu, SV(load)(skip + i)), nl = SV(max)(SV(max)(ea, eb), es), nb = SV(max)(eb, eu);
        SV(t) l = SV(load)(ml + i), b = SV(load)(mb + i), up = SV(shift_up)(before, l);
        before = l;
        SV(t) sum = SV(mul)(b, SFN(pow2)(SV(sub)(eb, nl)));
        sum = SV(fma)(up, SFN(pow2)(SV(sub)(es, nl)), sum);
        sum = SV(fma)(l, SFN(pow2)(SV(sub)(ea, nl)), sum);
        SV(store)(to + i, SV(mul)(sum, SV(mul)(SV(load)(em + i), up_by)));
        sum = SV(mul)(b, SFN(pow2)(SV(sub)(eb, nb)));
        sum = SV(fma)(up, SFN(pow2)(SV(sub)(eu, nb)), sum);
        SV(store)(to + Lp + i, SV(mul)(sum, blank));
        SV(store)(exps + i, SV(sub)(nl, lift));
        SV(store)(exps + Lp + i, SV(sub)(nb, lift));
    }
}

static void SFN(beta_alone)(FN(work) *w, STATE *beta, STATE *exps, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *A = EDGED(w->aligned, 0), *B = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0);
    const STATE *ml = OWN(w->start) + FN(PAD), *mb = ml + Lp + 2 * FN(PAD);
    SV(t) stay = SV(set1)(w->s->simple ? 2 * DEAD : 0);
    for (int64_t i = i0; i < i1; i += SW) {
        SV(t) el = SV(load)(A + i), ea = SV(add)(el, stay), eb = SV(load)(B + i), ed = SV(load)(B + i + 1);
        SV(t) es = SV(add)(SV(load)(A + i + 1), SV(load)(skip + i + 1));
        SV(t) nl = SV(max)(SV(max)(ea, ed), es), nb = SV(max)(eb, el);
        SV(t) l = SV(load)(ml + i), b = SV(load)(mb + i);
        SV(t) sum = SV(mul)(SV(load)(mb + i + 1), SFN(pow2)(SV(sub)(ed, nl)));
        sum = SV(fma)(SV(load)(ml + i + 1), SFN(pow2)(SV(sub)(es, nl)), sum);
        SV(store)(beta + i, SV(fma)(l, SFN(pow2)(SV(sub)(ea, nl)), sum));
        sum = SV(mul)(b, SFN(pow2)(SV(sub)(eb, nb)));
        SV(store)(beta + Lp + i, SV(fma)(l, SFN(pow2)(SV(sub)(el, nb)), sum));
        SV(store)(exps + i, nl);
        SV(store)(exps + Lp + i, nb);
    }
}

/* The whole binades that a WIDE row's emissions left out. */
static void SFN(add_wide)(FN(work) *w, int64_t t, int r, STATE *exps, int64_t i0, int64_t i1)
{
    const double *binades = FN(rare_emissions)(w, t, r);
    for (int64_t i = i0; i < i1; i++) {
        if (i < w->L) exps[i] += (STATE)binades[w->position[i]];
        exps[w->Lp + i] += (STATE)binades[w->position[w->L]];
    }
}

/* Takes n rows of emissions through alpha, from and to w->state; keep: each row and its exponents stay in the slot. */
static void SFN(alpha_block)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1, int keep)
{
    int64_t Lp = w->Lp;
    FN(slot) *slot = w->slot;
    int simple = w->s->simple, runs = 0;
    STATE *state = OWN(w->state);
    const STATE *m = state;
    const STATE *exps = OWN(w->exps);
    const STATE *A = EDGED(w->aligned, 0), *B = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0);
    const STATE *ml = OWN(w->start) + FN(PAD), *mb = ml + Lp + 2 * FN(PAD);
    STATE *f = OWN(w->factors);
    for (int r = 0; r < n; runs++) {
        STATE shift = 0;
        int64_t dead = SFN(split)(w, m, exps, i0, i1), front = t0 + r < w->L ? t0 + r : w->L;
        int rows = SFN(run_length)(w, r, n, 0, front, i0, i1, dead, &shift);
        STATE *N = OWN(slot->exps) + (keep ? runs % slot->most_runs : 0) * 2 * Lp;
        STATE *to = OWN(slot->rows) + (keep ? r : r & 1) * 2 * Lp;
        exps = N;
        if (rows == 1) {
            SFN(alpha_alone)(w, to, r, N, i0, i1);
            if (slot->flags[r] & FN(ROW_WIDE)) SFN(add_wide)(w, t0 + r, r, N, i0, i1);
            slot->run_of_row[r++] = runs;
            m = to;
            continue;
        }
        SV(t) by = SV(set1)(shift);
        SV(t) one = SFN(pow2)(by);
        for (int64_t i = i0; i < i1; i += SW) {
            SV(t) a = SV(load)(A + i), b = SV(load)(B + i), up = SV(load)(A + i - 1);
            SV(store)(f + SFN(F_BLANK) * Lp + i, SFN(pow2)(SV(sub)(b, a)));
            SV(store)(f + SFN(F_LABEL) * Lp + i, SFN(pow2)(SV(add)(SV(sub)(up, a), SV(load)(skip + i))));
            SV(store)(f + SFN(F_STEP) * Lp + i, SFN(pow2)(SV(sub)(up, b)));
            SV(store)(N + i, SV(sub)(a, by));
            SV(store)(N + Lp + i, SV(sub)(b, by));
            SV(store)(state + i, SV(mul)(SV(load)(ml + i), one));
            SV(store)(state + Lp + i, SV(mul)(SV(load)(mb + i), one));
        }
        m = state;
        for (int end = r + rows, step; r < end; r += step) {
            step = rows < SFN(TOGETHER) ? rows : SFN(TOGETHER);
            to = keep ? OWN(slot->rows) + r * 2 * Lp : state;
            SFN(alpha_rows)(step, simple, m, to, keep, OWN(w->em) + r * Lp, OWN(w->eb) + r, f, Lp, i0, i1);
            for (int k = 0; k < step; k++) slot->run_of_row[r + k] = runs;
            m = keep ? to + (step - 1) * 2 * Lp : to;
        }
    }
    slot->kept &= runs <= slot->most_runs;
    for (int k = 0; k < 2; k++) {
        if (m != state) memcpy(state + k * Lp + i0, m + k * Lp + i0, (size_t)(i1 - i0) * sizeof *m);
        memcpy(OWN(w->exps) + k * Lp + i0, exps + k * Lp + i0, (size_t)(i1 - i0) * sizeof *exps);
    }
}

/* Factors that turn mantissas of alpha in one run, and of beta in another, into probabilities: half the binades for
 * each, as no product on the way may leave the range of the numbers. */
static void SFN(product_units)(FN(work) *w, int run, const STATE *exps, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *N = OWN(w->slot->exps) + run * 2 * Lp;
    SV(t) total = SV(set1)((STATE)w->log2_p);
    STATE *h = OWN(w->factors) + 3 * Lp;
    for (int k = 0; k < 2; k++, h += Lp, N += Lp, exps += Lp)
        for (int64_t i = i0; i < i1; i += SW) {
            SV(t) n = SV(add)(SV(sub)(SV(load)(N + i), total), SV(load)(exps + i)), half = SV(rint)(SV(mul)(n, SV(set1)((STATE)0.5)));
            SV(store)(h + i, SFN(pow2)(half));
            SV(store)(h + 2 * Lp + i, SFN(pow2)(SV(sub)(n, half)));
        }
}

/* beta from the block's last row to its first, w->state holding emission * beta of the row after; with alpha in
 * the slot it leaves the occupancies of the block. */
static void SFN(beta_block)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    int simple = w->s->simple;
    FN(slot) *slot = w->slot;
    STATE *exps = OWN(w->exps);
    const STATE *A = EDGED(w->aligned, 0), *B = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0);
    const STATE *ml = OWN(w->start) + FN(PAD), *mb = ml + Lp + 2 * FN(PAD);
    STATE *f = OWN(w->factors), *y = OWN(w->state), *h = f + 3 * Lp, *sums = OWN(w->sums);
    for (int r = n; r > 0;) {
        STATE shift = 0;
        int64_t dead = SFN(split)(w, y, exps, i0, i1), front = w->L - w->T + t0 + r;
        int rows = SFN(run_length)(w, r, n, 1, front > 0 ? front : 0, i0, i1, dead, &shift);
        if (rows == 1) {
            STATE *beta = f; /* the factors are not in use, only those of the product */
            r--;
            SFN(beta_alone)(w, beta, exps, i0, i1);
            SFN(product_units)(w, slot->run_of_row[r], exps, i0, i1);
            const STATE *alpha = OWN(slot->rows) + r * 2 * Lp, *em = OWN(w->em) + r * Lp;
            SV(t) labels = SV(set1)(0), blanks = labels, blank = SV(set1)(OWN(w->eb)[r]);
            for (int64_t i = i0; i < i1; i += SW) {
                SV(t) l = SV(load)(beta + i), b = SV(load)(beta + Lp + i);
                SV(t) o = SFN(product)(SV(load)(alpha + i), SV(load)(h + i), l, SV(load)(h + 2 * Lp + i));
                STORE_REAL(w->occupied + r * Lp + i, o);
                labels = SV(add)(labels, o);
                o = SFN(product)(SV(load)(alpha + Lp + i), SV(load)(h + Lp + i), b, SV(load)(h + 3 * Lp + i));
                blanks = SV(add)(blanks, o);
                SV(store)(y + i, SV(mul)(l, SV(load)(em + i)));
                SV(store)(y + Lp + i, SV(mul)(b, blank));
            }
            SV(store)(sums + r * SW, labels);
            SV(store)(sums + (BLOCK + r) * SW, blanks);
            if (slot->flags[r] & FN(ROW_WIDE)) SFN(add_wide)(w, t0 + r, r, exps, i0, i1);
            continue;
        }
        SV(t) by = SV(set1)(shift);
        SV(t) one = SFN(pow2)(by);
        for (int64_t i = i0; i < i1; i += SW) {
            SV(t) a = SV(load)(A + i), b = SV(load)(B + i), down = SV(load)(A + i - 1);
            SV(store)(f + SFN(F_BLANK) * Lp + i, SFN(pow2)(SV(sub)(b, down)));
            SV(store)(f + SFN(F_LABEL) * Lp + i, SFN(pow2)(SV(add)(SV(sub)(a, down), SV(load)(skip + i))));
            SV(store)(f + SFN(F_STEP) * Lp + i, SFN(pow2)(SV(sub)(a, b)));
            SV(store)(exps + i, SV(sub)(a, by));
            SV(store)(exps + Lp + i, SV(sub)(b, by));
            SV(store)(y + i, SV(mul)(SV(load)(ml + i), one));
            SV(store)(y + Lp + i, SV(mul)(SV(load)(mb + i), one));
        }
        for (int end = r - rows, run = -1, step; r > end; r -= step) {
            const int32_t *runs = slot->run_of_row;
            if (runs[r - 1] != run) SFN(product_units)(w, run = runs[r - 1], exps, i0, i1);
            for (step = SFN(TOGETHER); r - step < end || runs[r - step] != run; step /= 2) {}
            SFN(beta_rows)(step, simple, y, OWN(slot->rows) + (r - 1) * 2 * Lp, OWN(w->em) + (r - 1) * Lp, OWN(w->eb) + r - 1, f,
                           h, w->occupied + (r - 1) * Lp, sums + (r - 1) * SW, sums + (BLOCK + r - 1) * SW, Lp, i0,
                           i1);
        }
    }
}

/* Sets the recursions up: no state reached, and the pairs of labels that may follow each other directly. */
static void SFN(begin)(FN(work) *w, int64_t first_blank)
{
    STATE *skip = EDGED(w->skip, 0);
    const int32_t *labels = w->s->labels;
    STATE *state = OWN(w->state);
    memset(state, 0, (size_t)w->Lp * 2 * sizeof(STATE));
    memset(w->exps, 0, (size_t)w->Lp * 2 * sizeof(STATE));
    state[w->Lp + first_blank] = 1;
    w->alone = 0;
    skip[0] = 2 * DEAD; /* below DEAD, so that a dead sum never takes it for its unit */
    for (int64_t i = 1; i <= w->Lp; i++)
        skip[i] = i < w->L && (w->s->simple || labels[i] != labels[i - 1]) ? 0 : 2 * DEAD;
}

/* ln p from the last row of alpha; 0 where there is no probability. */
static int SFN(finish)(FN(work) *w)
{
    const STATE *state = OWN(w->state), *exps = OWN(w->exps);
    int64_t L = w->L;
    double b = (double)state[w->Lp + L], l = L ? (double)state[L - 1] : 0;
    double eb = (double)exps[w->Lp + L], el = L ? (double)exps[L - 1] : eb;
    int shift = 0;
    if (!(b > 0 || l > 0)) return 0;
    if (!(b > 0)) eb = el;
    if (!(l > 0)) el = eb;
    double top = eb > el ? eb : el;
    b = eb - top < -2000 ? 0 : ldexp(b, (int)(eb - top));
    l = el - top < -2000 ? 0 : ldexp(l, (int)(el - top));
    double mantissa = frexp(b + l, &shift);
    w->log2_p = top + shift;
    w->ln_p = (top + shift + log2(mantissa)) * LN2;
    return 1;
}
