/* A few rows of the recursions with the exponents standing still: three multiply-adds a pair of states. The rows go
 * through each vector of states together, so that states and factors are loaded once for all of them. */

/* Factors between the units of neighbouring states, [Lp] each. Where all share one unit (flat), only the first is read,
 * which then says where a label may be skipped to. */
enum { SFN(F_LABEL), SFN(F_BLANK), SFN(F_STEP) };

/* keep: each row goes to its place at to; else only the last, to `to` itself, which may be `from`. */
static inline void SFN(alpha_steps)(const int simple, const int flat, const STATE *from, STATE *to, int keep,
                                   const STATE *em, const STATE *eb, const STATE *factors, int64_t Lp, int64_t i0,
                                   int64_t i1)
{
    enum { rows = FN(SHORTEST) };
    SV(t) before[rows], blank[rows];
    for (int j = 0; j < rows; j++) {
        before[j] = SV(set1)(0);
        blank[j] = SV(set1)(eb[j]);
    }
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
            l = SV(mul)(SV(fma)(f_label, up, sum), SV(load)(em + j * Lp + i));
            b = SV(mul)(flat ? SV(add)(up, b) : SV(fma)(f_step, up, b), blank[j]);
            if (keep || j == rows - 1) {
                STATE *at = to + (keep ? j * 2 * Lp : 0) + i;
                SV(store)(at, l);
                SV(store)(at + Lp, b);
            }
        }
    }
}

static void SFN(alpha_rows)(int simple, int flat, const STATE *from, STATE *to, int keep, const STATE *em,
                            const STATE *eb, const STATE *factors, int64_t Lp, int64_t i0, int64_t i1)
{
#define ROWS(s, f) keep ? STEPS(s, f, 1) : STEPS(s, f, 0)
#define STEPS(s, f, k) SFN(alpha_steps)(s, f, from, to, k, em, eb, factors, Lp, i0, i1)
    if (simple) flat ? (ROWS(1, 1)) : (ROWS(1, 0));
    else flat ? (ROWS(0, 1)) : (ROWS(0, 0));
#undef STEPS
#undef ROWS
}

/* a * b in units that ha and hb bring to probabilities. Where one of the two is 0 its unit means nothing, and the other
 * must not become infinite. */
static inline SV(t) SFN(product)(SV(t) a, SV(t) ha, SV(t) b, SV(t) hb)
{
    SV(t) most = SV(pow2)(SV(set1)(BUDGET / 2));
    return SV(mul)(SV(min)(SV(mul)(a, ha), most), SV(min)(SV(mul)(b, hb), most));
}

/* y holds emission * beta of the row after the last of these and receives that of the first; occupied receives
 * alpha * beta of the labels, sums that of each row's labels and blanks, lane by lane. Row j stands at -j. */
static inline void SFN(beta_steps)(const int rows, const int simple, const int flat, STATE *y, const STATE *alpha,
                                   const STATE *em, const STATE *eb, const STATE *factors, const STATE *h,
                                   REAL *occupied, STATE *label_sums, STATE *blank_sums, int64_t Lp, int64_t i0,
                                   int64_t i1)
{
    SV(t) after[FN(SHORTEST)], blank[FN(SHORTEST)], labels[FN(SHORTEST)], blanks[FN(SHORTEST)];
    for (int j = 0; j < rows; j++) {
        after[j] = labels[j] = blanks[j] = SV(set1)(0);
        blank[j] = SV(set1)(eb[-j]);
    }
    for (int64_t i = i1 - SW; i >= i0; i -= SW) {
        SV(t) l = SV(load)(y + i), b = SV(load)(y + Lp + i);
        SV(t) f_label = SV(load)(factors + SFN(F_LABEL) * Lp + i), f_blank = f_label, f_step = f_label;
        if (!flat) {
            f_blank = SV(load)(factors + SFN(F_BLANK) * Lp + i);
            f_step = SV(load)(factors + SFN(F_STEP) * Lp + i);
        }
        SV(t) hl = SV(load)(h + i), hb = SV(load)(h + Lp + i);
        SV(t) hl2 = SV(load)(h + 2 * Lp + i), hb2 = SV(load)(h + 3 * Lp + i);
        for (int j = 0; j < rows; j++) {
            const STATE *a = alpha - j * 2 * Lp + i;
            SV(t) flow = SV(fma)(f_label, l, flat ? b : SV(mul)(f_blank, b)), down = SV(shift_down)(flow, after[j]);
            after[j] = flow;
            b = flat ? SV(add)(l, b) : SV(fma)(f_step, l, b);
            l = simple ? down : SV(add)(l, down);
            SV(t) o = SFN(product)(SV(load)(a), hl, l, hl2);
            STORE_REAL(occupied - j * Lp + i, o);
            labels[j] = SV(add)(labels[j], o);
            blanks[j] = SV(add)(blanks[j], SFN(product)(SV(load)(a + Lp), hb, b, hb2));
            l = SV(mul)(l, SV(load)(em - j * Lp + i));
            b = SV(mul)(b, blank[j]);
        }
        SV(store)(y + i, l);
        SV(store)(y + Lp + i, b);
    }
    for (int j = 0; j < rows; j++) {
        SV(store)(label_sums - j * SW, labels[j]);
        SV(store)(blank_sums - j * SW, blanks[j]);
    }
}

static void SFN(beta_rows)(int rows, int simple, int flat, STATE *y, const STATE *alpha, const STATE *em,
                           const STATE *eb, const STATE *factors, const STATE *h, REAL *occupied, STATE *label_sums,
                           STATE *blank_sums, int64_t Lp, int64_t i0, int64_t i1)
{
#define ROWS(s, f) rows > 1 ? STEPS(FN(SHORTEST), s, f) : STEPS(1, s, f)
#define STEPS(n, s, f)                                                                                        \
    SFN(beta_steps)(n, s, f, y, alpha, em, eb, factors, h, occupied, label_sums, blank_sums, Lp, i0, i1)
    if (simple) flat ? (ROWS(1, 1)) : (ROWS(1, 0));
    else flat ? (ROWS(0, 1)) : (ROWS(0, 0));
#undef STEPS
#undef ROWS
}
