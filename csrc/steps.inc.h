/* The rows of a run, in which exponents stand still: three multiply-adds to a pair of states, a label and a blank.
 * Where registers do not hold all states, some rows go through each vector of states together, so that states and
 * factors are loaded once for them all. Their arrays begin as lists: of a loop of zeros GCC makes `rep stos` for AVX2,
 * which takes as long as some of these rows. */

/* Factors between the exponents (units) of neighbouring states, [Lp] each. Where all states share one (flat), only the
 * first is read, which then is w->passes. */
enum { SFN(F_LABEL), SFN(F_BLANK), SFN(F_STEP) };

/* Vectors of states that registers hold, beside what a row needs. */
enum { SFN(MOST_HELD) = 4 };

/* Rows that go together: as many as registers hold what each of them needs. It divides SHORTEST. */
enum { SFN(TOGETHER) = VEC_REGISTERS < 32 ? 2 : 4 };

/* Rows lie as in a slot, [3][Lp] each. keep: alpha of each row goes there; else only that of the last one is left, at
 * `last`, which may be `from`. */
EACH_ITS_OWN void SFN(alpha_steps)(const int simple, const int flat, const STATE *from, STATE *last, int keep,
                                   STATE *row, const STATE *eb, const STATE *factors, int64_t Lp, int64_t i0,
                                   int64_t i1)
{
    enum { rows = SFN(TOGETHER) };
    const SV(t) zero = SV(set1)(0);
    SV(t) before[4] = {zero, zero, zero, zero}, blank[rows];
    for (int j = 0; j < rows; j++) blank[j] = SV(set1)(eb[j]);
    for (int64_t i = i0; i < i1; i += SW) {
        SV(t) l = SV(load)(from + i), b = SV(load)(from + Lp + i);
        SV(t) f_label = SV(load)(factors + SFN(F_LABEL) * Lp + i), f_blank = f_label, f_step = f_label;
        if (!flat) {
            f_blank = SV(load)(factors + SFN(F_BLANK) * Lp + i);
            f_step = SV(load)(factors + SFN(F_STEP) * Lp + i);
        }
        for (int j = 0; j < rows; j++) {
            SV(t) up = SV(shift_up)(before[j], l), sum;
            if (flat) sum = simple ? b : SV(add)(l, b);
            else sum = simple ? SV(mul)(f_blank, b) : SV(fma)(f_blank, b, l);
            before[j] = l;
            l = SV(mul)(SV(fma)(f_label, up, sum), SV(load)(row + (3 * j + 2) * Lp + i));
            b = SV(mul)(flat ? SV(add)(up, b) : SV(fma)(f_step, up, b), blank[j]);
            if (keep || j == rows - 1) {
                STATE *at = (keep ? row + 3 * j * Lp : last) + i;
                SV(store)(at, l);
                SV(store)(at + Lp, b);
            }
        }
    }
}

static void SFN(alpha_rows)(int simple, int flat, const STATE *from, STATE *last, int keep, STATE *row,
                            const STATE *eb, const STATE *factors, int64_t Lp, int64_t i0, int64_t i1)
{
#define ROWS(s, f) keep ? STEPS(s, f, 1) : STEPS(s, f, 0)
#define STEPS(s, f, k) SFN(alpha_steps)(s, f, from, last, k, row, eb, factors, Lp, i0, i1)
    for (int j = 0; j < FN(SHORTEST); j += SFN(TOGETHER), row += 3 * SFN(TOGETHER) * Lp, eb += SFN(TOGETHER)) {
        if (simple) flat ? (ROWS(1, 1)) : (ROWS(1, 0));
        else flat ? (ROWS(0, 1)) : (ROWS(0, 0));
        from = keep ? row + 3 * (SFN(TOGETHER) - 1) * Lp : last;
    }
#undef STEPS
#undef ROWS
}

/* Whether states are so few that a row takes as long as the chain of operations from it to the next: that is kept
 * short then, at the price of more operations. It is so for all rows of a sample or for none, as the bits differ. */
EACH_ITS_OWN int SFN(waits)(const int flat, const int vectors, int64_t Lp)
{
    return flat && vectors <= 2 && Lp <= 2 * SW;
}

/* Alpha through any number of rows, with states few enough to stay in registers; never for the simple topology. */
EACH_ITS_OWN void SFN(alpha_held)(const int vectors, const int flat, const STATE *from, STATE *last, int keep, int rows,
                                  STATE *row, const STATE *eb, const STATE *factors, int64_t Lp)
{
    const int waiting = SFN(waits)(flat, vectors, Lp);
    SV(t) l[SFN(MOST_HELD)], b[SFN(MOST_HELD)];
    for (int k = 0; k < vectors; k++) {
        l[k] = SV(load)(from + k * SW);
        b[k] = SV(load)(from + Lp + k * SW);
    }
    for (int j = 0; j < rows; j++, row += 3 * Lp) {
        SV(t) blank = SV(set1)(eb[j]);
        for (int k = vectors - 1; k >= 0; k--) {
            const STATE *f = factors + k * SW;
            SV(t) up = SV(shift_up)(k ? l[k - 1] : SV(set1)(0), l[k]);
            SV(t) f_label = SV(load)(f + SFN(F_LABEL) * Lp), e = SV(load)(row + 2 * Lp + k * SW);
            if (waiting) {
                l[k] = SV(fma)(SV(mul)(f_label, e), up, SV(fma)(e, l[k], SV(mul)(e, b[k])));
                b[k] = SV(fma)(blank, up, SV(mul)(blank, b[k]));
                continue;
            }
            SV(t) sum = flat ? SV(add)(l[k], b[k]) : SV(fma)(SV(load)(f + SFN(F_BLANK) * Lp), b[k], l[k]);
            SV(t) step = flat ? SV(add)(up, b[k]) : SV(fma)(SV(load)(f + SFN(F_STEP) * Lp), up, b[k]);
            l[k] = SV(mul)(SV(fma)(f_label, up, sum), e);
            b[k] = SV(mul)(step, blank);
        }
        if (!keep && j < rows - 1) continue;
        for (int k = 0; k < vectors; k++) {
            SV(store)((keep ? row : last) + k * SW, l[k]);
            SV(store)((keep ? row : last) + Lp + k * SW, b[k]);
        }
    }
}

/* Whether the states from i0 to i1 fit in registers, as alpha_held and beta_held need it. */
static inline int SFN(holds)(int simple, int64_t i0, int64_t i1) { return !simple && i1 - i0 <= SFN(MOST_HELD) * SW; }

#define HELD(call) \
    i1 - i0 == SW ? call(1) : i1 - i0 == 2 * SW ? call(2) : i1 - i0 == 3 * SW ? call(3) : call(4)

static void SFN(alpha_run)(int flat, const STATE *from, STATE *last, int keep, int rows, STATE *row, const STATE *eb,
                           const STATE *factors, int64_t Lp, int64_t i0, int64_t i1)
{
#define CALL(n)                                                                                               \
    flat ? SFN(alpha_held)(n, 1, from + i0, last + i0, keep, rows, row + i0, eb, factors + i0, Lp)            \
         : SFN(alpha_held)(n, 0, from + i0, last + i0, keep, rows, row + i0, eb, factors + i0, Lp)
    HELD(CALL);
#undef CALL
}

/* From beta of a vector of label and blank states, in the exponents of tie, to their occupancies, of which the labels'
 * go to `occupied`; then to emission * beta. Where alpha has not been, factors may have made infinities of it: those
 * are cut. */
EACH_ITS_OWN void SFN(meet)(const int flat, SV(t) *l, SV(t) *b, const STATE *row, int64_t Lp, SV(t) blank,
                            REAL *occupied, SV(t) *labels, SV(t) *blanks)
{
    if (!flat) {
        SV(t) most = SV(pow2)(SV(set1)(MOST_EXPONENT - 1));
        *l = SV(min)(*l, most);
        *b = SV(min)(*b, most);
    }
    SV(t) o = SV(mul)(SV(load)(row), *l), em = SV(load)(row + 2 * Lp);
    STORE_REAL(occupied, o); /* which may be where em was */
    *labels = SV(add)(*labels, o);
    *blanks = SV(fma)(SV(load)(row + Lp), *b, *blanks);
    *l = SV(mul)(*l, em);
    *b = SV(mul)(*b, blank);
}

/* Leaves sums of a row's occupancies, lane by lane, where its alpha was: of the labels, then of the blanks. */
EACH_ITS_OWN void SFN(leave_sums)(STATE *row, SV(t) labels, SV(t) blanks)
{
    SV(store)(row, labels);
    SV(store)(row + SW, blanks);
}

/* y holds emission * beta of the row after these and receives that of the first of them, in the exponents of tie;
 * `occupied` receives the occupancies of the labels. row, eb and occupied are at the last row, and row j at -j. */
EACH_ITS_OWN void SFN(beta_steps)(const int simple, const int flat, STATE *y, STATE *row, const STATE *eb,
                                  const STATE *factors, REAL *occupied, int64_t o_step, int64_t Lp, int64_t i0,
                                  int64_t i1)
{
    enum { rows = SFN(TOGETHER) };
    const SV(t) zero = SV(set1)(0);
    SV(t) after[4] = {zero, zero, zero, zero}, labels[4] = {zero, zero, zero, zero};
    SV(t) blanks[4] = {zero, zero, zero, zero}, blank[rows];
    for (int j = 0; j < rows; j++) blank[j] = SV(set1)(eb[-j]);
    for (int64_t i = i1 - SW; i >= i0; i -= SW) {
        SV(t) l = SV(load)(y + i), b = SV(load)(y + Lp + i);
        SV(t) f_label = SV(load)(factors + SFN(F_LABEL) * Lp + i), f_blank = f_label, f_step = f_label;
        if (!flat) {
            f_blank = SV(load)(factors + SFN(F_BLANK) * Lp + i);
            f_step = SV(load)(factors + SFN(F_STEP) * Lp + i);
        }
        for (int j = 0; j < rows; j++) {
            SV(t) flow = SV(fma)(f_label, l, flat ? b : SV(mul)(f_blank, b)), down = SV(shift_down)(flow, after[j]);
            after[j] = flow;
            b = flat ? SV(add)(l, b) : SV(fma)(f_step, l, b);
            l = simple ? down : SV(add)(l, down);
            SFN(meet)(flat, &l, &b, row - 3 * j * Lp + i, Lp, blank[j], occupied - j * o_step + i, &labels[j],
                      &blanks[j]);
        }
        SV(store)(y + i, l);
        SV(store)(y + Lp + i, b);
    }
    for (int j = 0; j < rows; j++) SFN(leave_sums)(row - 3 * j * Lp + i0, labels[j], blanks[j]);
}

static void SFN(beta_rows)(int simple, int flat, STATE *y, STATE *row, const STATE *eb, const STATE *factors,
                           REAL *occupied, int64_t o_step, int64_t Lp, int64_t i0, int64_t i1)
{
#define STEPS(s, f) SFN(beta_steps)(s, f, y, row, eb, factors, occupied, o_step, Lp, i0, i1)
    for (int j = 0; j < FN(SHORTEST); j += SFN(TOGETHER)) {
        if (simple) STEPS(1, 1); /* and flat */
        else flat ? STEPS(0, 1) : STEPS(0, 0);
        row -= 3 * SFN(TOGETHER) * Lp;
        eb -= SFN(TOGETHER);
        occupied -= SFN(TOGETHER) * o_step;
    }
#undef STEPS
}

/* Beta through any number of rows, with states few enough to stay in registers; never for the simple topology. */
EACH_ITS_OWN void SFN(beta_held)(const int vectors, const int flat, int rows, STATE *y, STATE *row, const STATE *eb,
                                 const STATE *factors, REAL *occupied, int64_t o_step, int64_t Lp)
{
    const int waiting = SFN(waits)(flat, vectors, Lp);
    SV(t) l[SFN(MOST_HELD)], b[SFN(MOST_HELD)];
    for (int k = 0; k < vectors; k++) {
        l[k] = SV(load)(y + k * SW);
        b[k] = SV(load)(y + Lp + k * SW);
    }
    for (int j = 0; j < rows; j++, row -= 3 * Lp, occupied -= o_step) {
        SV(t) blank = SV(set1)(eb[-j]), after = SV(set1)(0), labels = after, blanks = after;
        for (int k = vectors - 1; k >= 0; k--) {
            const STATE *f = factors + k * SW;
            SV(t) in = flat ? b[k] : SV(mul)(SV(load)(f + SFN(F_BLANK) * Lp), b[k]);
            SV(t) flow = SV(fma)(SV(load)(f + SFN(F_LABEL) * Lp), l[k], in), down = SV(shift_down)(flow, after);
            after = flow;
            if (waiting) {
                SV(t) em = SV(load)(row + 2 * Lp + k * SW), o = SV(mul)(SV(load)(row + k * SW), SV(add)(l[k], down));
                STORE_REAL(occupied + k * SW, o); /* which may be where em was */
                SV(t) alpha = SV(load)(row + Lp + k * SW), both = SV(add)(l[k], b[k]);
                labels = k == vectors - 1 ? o : SV(add)(labels, o);
                blanks = k == vectors - 1 ? SV(mul)(alpha, both) : SV(fma)(alpha, both, blanks);
                b[k] = SV(fma)(blank, l[k], SV(mul)(blank, b[k]));
                l[k] = SV(fma)(em, down, SV(mul)(em, l[k]));
                continue;
            }
            b[k] = flat ? SV(add)(l[k], b[k]) : SV(fma)(SV(load)(f + SFN(F_STEP) * Lp), l[k], b[k]);
            l[k] = SV(add)(l[k], down);
            SFN(meet)(flat, &l[k], &b[k], row + k * SW, Lp, blank, occupied + k * SW, &labels, &blanks);
        }
        SFN(leave_sums)(row, labels, blanks);
    }
    for (int k = 0; k < vectors; k++) {
        SV(store)(y + k * SW, l[k]);
        SV(store)(y + Lp + k * SW, b[k]);
    }
}

static void SFN(beta_run)(int flat, int rows, STATE *y, STATE *row, const STATE *eb, const STATE *factors,
                          REAL *occupied, int64_t o_step, int64_t Lp, int64_t i0, int64_t i1)
{
#define BOTH(n, f) SFN(beta_held)(n, f, rows, y + i0, row + i0, eb, factors + i0, occupied + i0, o_step, Lp)
#define CALL(n) flat ? BOTH(n, 1) : BOTH(n, 0)
    HELD(CALL);
#undef CALL
#undef BOTH
}

#undef HELD
