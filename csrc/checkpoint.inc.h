/* Checkpoints in fewer bytes. */

/* Packs alpha of the labels from i0 to i1, then of the blanks: mantissas in [1, 2), or 0, in the elements' type, and
 * exponents above the least of them, -1 for dead states. Returns whether the exponents lie close enough together for
 * that. */
static int SFN(pack)(const FN(work) *w, int64_t i0, int64_t i1, REAL *m, int16_t *above, double *least)
{
    const STATE *state = OWN(w->state), *exps = OWN(w->exps);
    SV(t) high = SV(set1)(DEAD), low = high; /* low: the largest of the negated */
    for (int64_t at = i0; at < i1; at += SW)
        for (int64_t i = at; i <= at + w->Lp; i += w->Lp) {
            SV(t) a = SV(load)(state + i), e = SV(add)(SV(load)(exps + i), SV(logb)(a));
            high = SV(max)(high, e);
            low = SV(max)(low, SV(if_equal)(a, SV(set1)(0), SV(set1)(DEAD), SV(sub)(SV(set1)(0), e)));
        }
    *least = -(double)SV(highest)(low);
    if (!((double)SV(highest)(high) - *least <= INT16_MAX)) return 0;
    SV(t) from = SV(set1)((STATE)*least), none = SV(set1)(-1);
    for (int64_t k = 0; k < 2; k++)
        for (int64_t i = i0 + k * w->Lp; i < i1 + k * w->Lp; i += SW, m += SW, above += SW) {
            SV(t) a = SV(load)(state + i), e = SV(add)(SV(load)(exps + i), SV(logb)(a));
            STATE lanes[SW];
            SV(store)(lanes, SV(max)(SV(sub)(e, from), none));
            for (int j = 0; j < SW; j++) above[j] = (int16_t)lanes[j];
            STORE_REAL(m, SV(mantissa)(a));
        }
    return 1;
}

static void SFN(unpack)(FN(work) *w, int64_t i0, int64_t i1, const REAL *m, const int16_t *above, double least)
{
    STATE *state = OWN(w->state), *exps = OWN(w->exps);
    for (int64_t k = 0; k < 2; k++)
        for (int64_t i = i0 + k * w->Lp; i < i1 + k * w->Lp; i++, m++, above++) {
            state[i] = *m;
            exps[i] = *above < 0 ? (STATE)DEAD : (STATE)least + *above;
        }
}
