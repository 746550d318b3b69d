/* Labels that no longer matter, and are left out. On the way forward these are labels whose paths so far have less than
 * NEGLIGIBLE of p, as paths only lose from row to row. p is not known yet, and is expected to be what the first rows
 * promise. On the way back it is known which share of all paths is in each state, and most labels have less than that.
 * Earlier rows lose only paths that go through those labels here, which have no larger share there. */

/* An upper bound of what the labels and the blanks of a vector have together. */
static REAL SFN(share)(const REAL *labels, const STATE *alpha, const STATE *y, int64_t i, REAL inverse)
{
    REAL blanks[SW];
    STORE_REAL(blanks, SV(mul)(SV(load)(alpha + i), SV(load)(y + i)));
    return SW * V(highest)(V(fma)(V(load_n)(blanks, SW), V(set1)(inverse), V(load_n)(labels + i, SW)));
}

/* Leaves out labels that together have less of the probability than NEGLIGIBLE, from each end, at the first row of the
 * block that beta has come through. */
static void SFN(narrow)(FN(work) *w, int64_t i0, int64_t i1)
{
    const FN(slot) *slot = w->slot;
    const STATE *alpha = OWN(slot->rows) + w->Lp, *y = OWN(w->state) + w->Lp; /* of blanks; y: beta times emission */
    STATE blank = OWN(w->eb)[0];
    w->from = i0;
    w->to = i1;
    /* Not after a row alone, whose y has exponents of its own; nor with so few labels that sums have overwritten
     * alpha. */
    int alone = !slot->flat[0] && (slot->first_row[1] == 1 || w->s->simple);
    if (w->Lp <= 2 * W || alone || slot->unusual || w->grid > 0 || !(blank > 0x1p-40f)) return;
    REAL inverse = (REAL)(1 / blank), below = 0, above = 0;
    for (; w->from < i1; w->from += SW) {
        below += SFN(share)(w->occupied, alpha, y, w->from, inverse);
        if (!(below < NEGLIGIBLE)) break;
    }
    if (w->from >= i1) w->from = i0; /* nothing is probable: these numbers say nothing */
    for (; w->to > w->from; w->to -= SW) {
        above += SFN(share)(w->occupied, alpha, y, w->to - SW, inverse);
        if (!(above < NEGLIGIBLE)) break;
    }
    /* Where alpha is computed again it lacks what would have come from below `from`: beta must have nothing there. */
    FN(empty)(w, i0, w->from);
}

/* The largest exponent of the labels and the blanks of a vector. */
static double SFN(height)(const FN(work) *w, int64_t i)
{
    const STATE *m = OWN(w->state) + i, *exps = OWN(w->exps) + i;
    SV(t) label = SV(add)(SV(load)(exps), SV(logb)(SV(load)(m)));
    SV(t) blank = SV(add)(SV(load)(exps + w->Lp), SV(logb)(SV(load)(m + w->Lp)));
    return (double)SV(highest)(SV(max)(SV(max)(label, blank), SV(set1)(DEAD)));
}

/* Leaves out, before a block, labels from each end in which alpha is less than NEGLIGIBLE of what p is expected to be.
 * Returns whether any are left. */
static int SFN(trim)(FN(work) *w, int64_t block, double left, int64_t i0, int64_t i1)
{
    /* Together: there are 2 Lp states, and each is less than twice its binade. */
    double limit = w->expected + log2(NEGLIGIBLE / (double)(4 * w->Lp)) - left, height = DEAD;
    int64_t from = i0, to = i1;
    if (w->grid > 0) return 1;
    for (; from < i1 && (height = SFN(height)(w, from)) < limit; from += SW) w->cut |= height > DEAD;
    if (from == i1) return 0;
    for (; (height = SFN(height)(w, to - SW)) < limit; to -= SW) w->cut |= height > DEAD;
    FN(empty)(w, i0, from);
    FN(empty)(w, to, i1);
    w->ends[2 * block] = (int32_t)from;
    w->ends[2 * block + 1] = (int32_t)to;
    return 1;
}
