/* From what each class emits, with the rows along, to what each state emits, row by row; and sums over lanes. */

/* em[r][i] of the labels from i0 to i1, eb[r] of the blank. */
static void SFN(spread)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1)
{
    const REAL *table = w->table, *blank = table + w->column[w->Lp];
    STATE *em = OWN(w->em), *eb = OWN(w->eb);
    for (int64_t i = i0 / W * W; i < i1; i += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) e[W];
            for (int k = 0; k < W; k++) e[k] = V(load)(table + w->column[i + k] + r);
            V(transpose)(e);
            for (int k = 0; k < W; k++) STORE_STATES(em + (r + k) * w->Lp + i, e[k]);
        }
    for (int r = 0; r < BLOCK; r++) eb[r] = (STATE)blank[r];
    for (int r = 0; w->rare >> r; r++) {
        if (r >= n || !(w->rare >> r & 1)) continue;
        w->slot->flags[r] |= w->range[r] > RANGE_LIMIT ? FN(ROW_WIDE) : 0;
        FN(rare_emissions)(w, t0 + r, r);
        for (int64_t i = i0; i < i1; i++) em[r * w->Lp + i] = i < w->L ? (STATE)w->rare_e[w->position[i]] : 0;
        eb[r] = (STATE)w->rare_e[w->position[w->L]];
    }
}

/* The sum over the lanes of each of BLOCK vectors of w->sums. */
static inline void SFN(sum_lanes)(const FN(work) *w, int first, REAL *to)
{
    const STATE *vectors = OWN(w->sums) + first * SW;
    for (int r = 0; r < BLOCK; r += SW) STORE_REAL(to + r, SV(sums)(vectors + r * SW));
}
