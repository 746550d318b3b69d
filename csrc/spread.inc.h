/* From the table, in which rows lie side by side, to what each state emits, row by row; and sums over lanes. */

/* What one class emits in a block of rows, computed in doubles, to to[r * step]; of rare rows anything. */
static void SFN(emit_exactly)(const FN(work) *w, int64_t t0, int n, int32_t label, STATE *to, int64_t step)
{
    const ctc_sample *s = w->s;
    double e[BLOCK] = {0};
    BY_TYPE(gather_rows, s, t0, n, label, e);
    for (int r = 0; r < BLOCK; r += VD_LANES) {
        vd_t binades, d = vd_sub(vd_load(e + r), vd_load(w->slot->reference + r));
        vd_t part = FN(exact_exp)(d, &binades);
        vd_store(e + r, vd_scale(part, binades));
    }
    for (int r = 0; r < n; r++) to[r * step] = (STATE)e[r];
}

/* Brings what the labels from i0 to i1 and the blank emit to the slot's rows and eb. */
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
    int again = w->rare & ((1 << n) - 1), few = w->L <= FEW_LABELS;
    if (w->careful && few) {
        for (int64_t i = i0; i < i1 && i < w->L; i++) SFN(emit_exactly)(w, t0, n, w->s->labels[i], em + i, step);
        SFN(emit_exactly)(w, t0, n, w->s->blank, eb, 1);
    } else if (w->careful) again = (1 << n) - 1;
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
