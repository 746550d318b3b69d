/* From the table, in which rows lie side by side, to what each state emits, row by row; and sums over lanes. */

#if STATE_IS_DOUBLE && !IS_DOUBLE
/* What the labels from i0 to i1 emit, and the blank, where it is known with the digits of doubles. */
static void SFN(spread_exact)(const FN(work) *w, STATE *em, STATE *eb, int64_t i0, int64_t i1)
{
    for (int64_t i = i0; i < i1; i += SW)
        for (int r = 0; r < BLOCK; r += SW) {
            SV(t) e[SW];
            STATE *to = em + 3 * r * w->Lp + i;
            for (int k = 0; k < SW; k++) {
                int32_t at = i + k < w->L ? w->position[i + k] : w->used_count;
                e[k] = SV(load)(w->exact + (int64_t)at * BLOCK + r);
            }
            SV(transpose)(e);
            for (int k = 0; k < SW; k++, to += 3 * w->Lp) SV(store)(to, e[k]);
        }
    memcpy(eb, w->exact + (int64_t)w->position[w->L] * BLOCK, BLOCK * sizeof *eb);
}
#endif

/* Brings what the labels from i0 to i1 and the blank emit to the slot's rows and eb. */
static void SFN(spread)(FN(work) *w, int64_t t0, int64_t i0, int64_t i1)
{
    const REAL *table = w->table, *blank = table + w->column[w->Lp];
    STATE *em = OWN(w->slot->rows) + 2 * w->Lp, *eb = OWN(w->eb);
    int64_t step = 3 * w->Lp;
#if STATE_IS_DOUBLE && !IS_DOUBLE
    if (w->exactly) SFN(spread_exact)(w, em, eb, i0, i1);
#endif
    for (int64_t i = i0 / W * W; i < i1 && !w->exactly; i += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) e[W];
            for (int k = 0; k < W; k++) e[k] = V(load)(table + w->column[i + k] + r);
            V(transpose)(e);
            STATE *to = em + 3 * r * w->Lp + i;
            for (int k = 0; k < W; k++, to += step) STORE_STATES(to, e[k]);
        }
    for (int r = 0; r < BLOCK && !w->exactly; r++) eb[r] = (STATE)blank[r];
    for (int r = 0; w->rare >> r; r++) {
        if (!(w->rare >> r & 1)) continue;
        w->slot->flags[r] |= w->range[r] > RANGE_LIMIT ? FN(ROW_WIDE) : 0;
        REAL top = w->top[t0 + r], reference = w->exactly ? w->relative[r] : top;
        int near = w->range[r] <= (w->exactly ? RANGE_LIMIT : TABLE_RANGE);
        if (near && top < INFINITY && w->slot->reference[r] == (double)reference) continue; /* the table is right */
        if (r && w->rare >> (r - 1) & 1 && FN(same_row)(w, t0 + r)) {
            STATE *here = em + step * r + i0;
            memcpy(here, here - step, (size_t)(i1 - i0) * sizeof *here);
            eb[r] = eb[r - 1];
            continue;
        }
        FN(rare_emissions)(w, t0 + r, r);
        for (int64_t i = i0; i < i1; i++) em[step * r + i] = i < w->L ? (STATE)w->rare_e[w->position[i]] : 0;
        eb[r] = (STATE)w->rare_e[w->position[w->L]];
    }
}

/* The sums of each row's occupancies, from where beta has left them. */
static inline void SFN(sum_lanes)(const FN(work) *w, int64_t i0, REAL *labels, REAL *blanks)
{
    const STATE *row = OWN(w->slot->rows) + i0;
    for (int r = 0; r < BLOCK; r += SW, row += SW * 3 * w->Lp) {
        STORE_REAL(labels + r, SV(sums)(row, 3 * w->Lp));
        STORE_REAL(blanks + r, SV(sums)(row + SW, 3 * w->Lp));
    }
}
