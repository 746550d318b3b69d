/* Where the two halves of a sample meet. The second runs with its rows and its labels in reverse order: its alpha is
 * what the first one calls emission * beta, and the other way round. Either may run in floats or in doubles. */

/* Leaves alpha after the last row for the other half, its exponents relative to the largest of them. */
static void SFN(leave)(FN(work) *w)
{
    int64_t Lp = w->Lp, i0, i1, last = (w->blocks - 1) * BLOCK;
    double *m = w->border, *exps = m + 2 * Lp, crest = DEAD;
    FN(cone)(w, last, (int)(w->T - last), &i0, &i1);
    SFN(split)(w, OWN(w->state), OWN(w->exps), i0, i1);
    memset(m, 0, (size_t)Lp * 4 * sizeof *m); /* no path from outside the cone comes to an end */
    for (int k = 0; k < 2; k++) {
        const STATE *A = EDGED(w->aligned, k);
        for (int64_t i = i0; i < i1; i++) crest = (double)A[i] > crest ? (double)A[i] : crest;
    }
    for (int k = 0; k < 2; k++, m += Lp, exps += Lp) {
        const STATE *A = EDGED(w->aligned, k), *a = OWN(w->start) + k * (Lp + 2 * FN(PAD)) + FN(PAD);
        for (int64_t i = i0; i < i1; i++) {
            m[i] = (double)a[i];
            exps[i] = a[i] > 0 ? (double)A[i] - crest : 0;
        }
    }
    w->crest = crest;
}

/* Sets w->state, for the way back, to what the other half has left. */
static void SFN(turn)(FN(work) *w, const FN(work) *other)
{
    int64_t L = w->L, Lp = w->Lp;
    const double *m = other->border, *exps = m + 2 * Lp;
    STATE *to = OWN(w->state), *to_exps = OWN(w->exps);
    for (int64_t i = 0; i <= L; i++) {
        int64_t label = L - 1 - i, blank = Lp + L - i;
        if (i < L) to[i] = (STATE)m[label], to_exps[i] = m[label] > 0 ? (STATE)exps[label] : (STATE)DEAD;
        to[Lp + i] = (STATE)m[blank], to_exps[Lp + i] = m[blank] > 0 ? (STATE)exps[blank] : (STATE)DEAD;
    }
}

/* ln p, less both bases, from where the halves stand; returns 0 where there is no probability. The first goes on by
 * one row in which everything is emitted with 1. */
static int SFN(join)(FN(work) *w, FN(work) *other)
{
    int64_t L = w->L, Lp = w->Lp, i0, i1;
    const double *theirs = other->border, *their_exps = theirs + 2 * Lp;
    STATE *state = OWN(w->states[1]), *exps = OWN(w->all_exps[1]); /* beta's, which has not begun */
    FN(take_slot)(w, 0);
    for (int64_t i = 0; i < Lp; i++) OWN(w->slot->rows)[2 * Lp + i] = i < L;
    OWN(w->eb)[0] = 1;
    FN(cone)(w, w->T, 1, &i0, &i1);
    SFN(split)(w, OWN(w->states[0]), OWN(w->all_exps[0]), i0, i1);
    SFN(alpha_alone)(w, OWN(w->start) + FN(PAD), EDGED(w->aligned, 0), Lp + 2 * FN(PAD), state, exps, 0, i0, i1);

    double top = DEAD, sum = 0;
    for (int again = 0; again < 2; again++) { /* first the largest, then the sum against it */
        for (int64_t k = 0; k < 2; k++)
            for (int64_t i = i0; i < i1 && i < L + k; i++) {
                int64_t at = k * Lp + L - 1 + k - i;
                double product = (double)state[k * Lp + i] * theirs[at];
                double e = (double)exps[k * Lp + i] + their_exps[at];
                if (!(product > 0)) continue;
                if (!again) top = e > top ? e : top;
                else if (e - top > -200) sum += product * power_of_two((int)(e - top));
            }
        if (!again && top <= DEAD) return 0;
    }
    int shift = 0;
    double mantissa = frexp(sum, &shift);
    w->log2_p = top + shift; /* its own alpha's exponents in full, the other's less their crest */
    other->log2_p = w->log2_p + other->crest - w->crest;
    w->ln_p = (top + shift + other->crest + log2(mantissa)) * LN2;
    return 1;
}
