/* From what each class emits, with the rows along, to what each state emits, row by row; and sums over lanes. */

/* To the slot's rows and eb what the labels from i0 to i1 emit, and the blank. */
static void SFN(spread)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1)
{
    const REAL *table = w->table, *blank = table + w->column[w->Lp];
    STATE *em = OWN(w->slot->rows) + 2 * w->Lp, *eb = OWN(w->eb);
    int64_t step = 3 * w->Lp;
    for (int64_t i = i0 / W * W; i < i1; i += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) e[W];
            for (int k = 0; k < W; k++) e[k] = V(load)(table + w->column[i + k] + r);
            V(transpose)(e);
            STATE *to = em + 3 * r * w->Lp + i;
            for (int k = 0; k < W; k++, to += step) STORE_STATES(to, e[k]);
        }
    for (int r = 0; r < BLOCK; r++) eb[r] = (STATE)blank[r];
    int again = w->careful ? (1 << n) - 1 : w->rare & ((1 << n) - 1);
    for (int r = 0; again >> r; r++) {
        if (!(again >> r & 1)) continue;
        if (w->rare >> r & 1) w->slot->flags[r] |= w->range[r] > RANGE_LIMIT ? FN(ROW_WIDE) : 0;
        if (r && again >> (r - 1) & 1 && FN(same_row)(w, t0 + r)) {
            STATE *here = em + 3 * r * w->Lp + i0;
            memcpy(here, here - 3 * w->Lp, (size_t)(i1 - i0) * sizeof *here);
            eb[r] = eb[r - 1];
            continue;
        }
        FN(rare_emissions)(w, t0 + r, r);
        for (int64_t i = i0; i < i1; i++) em[3 * r * w->Lp + i] = i < w->L ? (STATE)w->rare_e[w->position[i]] : 0;
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
