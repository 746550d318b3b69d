/* One sample from its logits to its loss and gradient. */

/* Over more rows than these the rounding of floats would add up to more than a millionth. Sooner where labels are few
 * for so many rows: while two paths stay apart, what each row rounds makes their odds wrong, by an error that grows
 * like the square root of the rows. Doubles cost little there, as few states fill no more vectors of them. What
 * emissions round is half as much as what states do, and counts later. */
static int FN(few_for)(const ctc_sample *s, int bits) { return s->L < (int64_t)s->all * s->all >> bits; }
static int FN(needs_care)(const ctc_sample *s) { return !IS_DOUBLE && s->all > 4000 && FN(few_for)(s, 19); }
static int FN(needs_doubles)(const ctc_sample *s) { return IS_DOUBLE || s->all > 10000 || FN(few_for)(s, 16); }

static int FN(exact_enough)(const ctc_sample *s, double loss, int doubles) { return doubles || loss > FN(small)(s->T); }

/* Whether row sums in floats, which have taken `base` out of ln p, are exact enough for that loss. */
static int FN(sums_will_do)(const FN(work) *w, double base, double loss)
{
    return IS_DOUBLE || w->careful > 1 || !(-base > SUMS_TO_LOSS(w->dense) * (loss > 1 ? loss : 1));
}

/* Whether paths were left out that matter, as p turned out less than was expected. */
static int FN(cut_too_much)(const FN(work) *w, int possible, double loss)
{
    return w->cut && !(possible && -loss / LN2 >= w->expected);
}

/* Next time p is expected to be no less than was found. */
static void FN(expect_found)(FN(work) *w, int possible, double loss)
{
    w->expects = possible ? 1 : -1;
    w->expected = -loss / LN2 - 1;
}

/* NaN where it was stopped. */
static double FN(whole)(const ctc_sample *s, const ctc_extent *extent, void *scratch)
{
    FN(work) work, *w = &work;
    if (s->g) BY_TYPE(fill, s, s->T, s->rows, 0);
    if (!FN(feasible)(s)) {
        if (s->g) BY_TYPE(fill, s, 0, s->T, 0);
        return (double)INFINITY;
    }
    if (s->T == 0) return 0;

    int doubles = FN(needs_doubles)(s);
    double loss;
    w->grid = -1;
    w->careful = FN(needs_care)(s);
    w->limit = INFINITY;
    w->helps = 0;
    w->expects = 0;
    for (;;) {
        FN(set_up)(w, s, extent, scratch, doubles);
        FN(list_used)(w);
        int outcome = FN(forward)(w);
        if (outcome == FN(SHARP)) doubles = 1;
        if (outcome == FN(WORSE)) w->expects = -1;
        if (outcome == FN(STOPPED)) return (double)NAN;
        if (outcome != FN(THROUGH)) continue;
        int possible = !w->failed && BY_STATE(finish, w);
        loss = possible ? -(w->ln_p + w->base) : (double)INFINITY;
        if (!w->failed && FN(cut_too_much)(w, possible, loss)) {
            FN(expect_found)(w, possible, loss);
            continue;
        }
        if (!possible) {
            double nan = w->failed == FN(NOT_A_NUMBER) ? (double)NAN : 0;
            if (s->g) BY_TYPE(fill, s, 0, s->T, nan);
            return nan == 0 ? (double)INFINITY : nan;
        }
        if (w->grid > 0 && FN(refine_grid)(w)) continue;
        if (!(loss < INFINITY)) { /* beyond a double, as exponents no longer add up */
            if (s->g) BY_TYPE(fill, s, 0, s->T, 0);
            return (double)INFINITY;
        }
        if (!FN(sums_will_do)(w, w->base, loss)) w->careful = 2;
        else if (FN(exact_enough)(s, loss, doubles)) break;
        doubles = 1;
    }
    if (s->g && !FN(backward)(w, NULL)) return (double)NAN;
    return loss > 0 ? loss : 0; /* never -0 */
}

/* One phase of a split sample, or a part of it. */
static double FN(phase)(const ctc_sample *s, const ctc_extent *extent, void *scratch, int phase, int64_t first,
                        int64_t end, int slot)
{
    FN(work) work, *w = &work;
    if (phase == PHASE_PATHS) {
        ctc_sample own = *s; /* other threads read that one */
        own.slot = slot;
        return FN(whole)(&own, extent, scratch);
    }
    w->helps = phase != PHASE_BEGIN;
    w->careful = 0; /* the paths alone know of it */
    FN(set_up)(w, s, extent, scratch, 1); /* what phases share lies in the same place, whatever the states are */
    if (phase == PHASE_BEGIN) FN(list_used)(w);
    if (w->row) w->row += (size_t)slot * FN(room_of_row)(w->C);
    if (w->stage) w->stage += slot * extent->strided * FN(gathered_step)(w->C);
    if (phase == PHASE_ROWS) FN(sum_rows)(w, first, (int)(end - first), w->top + first, w->rests + first);
    for (int64_t block = first; phase > PHASE_ROWS && block < end; block++) {
        int64_t t0 = block * BLOCK;
        int n = w->T - t0 < BLOCK ? (int)(w->T - t0) : BLOCK;
        if (phase == PHASE_EMISSIONS) {
            FN(shared_table)(w, t0, n);
            continue;
        }
        const int32_t *reached = w->reached + 2 * block;
        FN(occupied_of)(w, t0);
        FN(grad_sparse)(w, t0, n, reached[0], reached[1], w->totals + 2 * t0, w->totals + 2 * t0 + BLOCK);
    }
    if (s->stream) vec_fence();
    return 0;
}
