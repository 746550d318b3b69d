/* The recursions over a block of rows, run by run. */

/* Rows alone: neighbours may stand any distance apart, as each sum is taken in the exponent of its largest term.
 * Mantissas are 0 or in [1, 2) from row to row. */

/* Stores sums, which are value * 2^unit, as mantissas and exponents. */
static inline void SFN(put)(STATE *m, STATE *exps, SV(t) value, SV(t) unit)
{
    SV(store)(exps, SV(max)(SV(add)(unit, SV(logb)(value)), SV(set1)(DEAD)));
    SV(store)(m, SV(mantissa)(value));
}

/* Blanks stand `apart` behind labels in m and exps, and Lp behind them in to and to_exps. */
static void SFN(alpha_alone)(const FN(work) *w, const STATE *m, const STATE *exps, int64_t apart, STATE *to,
                             STATE *to_exps, int r, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *skip = EDGED(w->skip, 0), *em = OWN(w->slot->rows) + (3 * r + 2) * Lp;
    SV(t) stay = SV(set1)(w->s->simple ? 2 * DEAD : 0), blank = SV(set1)(OWN(w->eb)[r]);
    SV(t) before = SV(set1)(0), e_before = SV(set1)(DEAD);
    for (int64_t i = i0; i < i1; i += SW) {
        SV(t) l = SV(load)(m + i), b = SV(load)(m + apart + i), up = SV(shift_up)(before, l);
        SV(t) el = SV(load)(exps + i), eb = SV(load)(exps + apart + i), eu = SV(shift_up)(e_before, el);
        SV(t) ea = SV(add)(el, stay), es = SV(add)(eu, SV(load)(skip + i));
        SV(t) nl = SV(max)(SV(max)(ea, eb), es), nb = SV(max)(eb, eu);
        before = l;
        e_before = el;
        SV(t) sum = SV(add)(SV(scale)(b, SV(sub)(eb, nl)), SV(scale)(up, SV(sub)(es, nl)));
        sum = SV(add)(sum, SV(scale)(l, SV(sub)(ea, nl)));
        SFN(put)(to + i, to_exps + i, SV(mul)(sum, SV(load)(em + i)), nl);
        sum = SV(add)(SV(scale)(b, SV(sub)(eb, nb)), SV(scale)(up, SV(sub)(eu, nb)));
        SFN(put)(to + Lp + i, to_exps + Lp + i, SV(mul)(sum, blank), nb);
    }
}

/* The exponents of alpha and of beta where their product is largest in a row. Exponents of a grid have been rounded,
 * by other amounts in other rows: occupancies are taken relative to this product rather than to p. */
static void SFN(row_top)(const FN(work) *w, const STATE *exps, int64_t apart, int run, int64_t i0, int64_t i1,
                         STATE *top)
{
    const STATE *skip = EDGED(w->skip, 0), *units = OWN(w->slot->exps) + run * 2 * w->Lp;
    STATE stay = w->s->simple ? 2 * DEAD : 0, el_after = DEAD, eb_after = DEAD;
    top[0] = top[1] = DEAD;
    for (int64_t i = i1 - 1; i >= i0; i--) {
        STATE el = exps[i], eb = exps[apart + i], n[2] = {el + stay, eb > el ? eb : el}, es = el_after + skip[i + 1];
        if (eb_after > n[0]) n[0] = eb_after;
        if (es > n[0]) n[0] = es;
        el_after = el;
        eb_after = eb;
        for (int k = 0; k < 2; k++) {
            STATE unit = units[k * w->Lp + i];
            if (unit > DEAD && n[k] > DEAD && unit - top[0] + (n[k] - top[1]) > 0) top[0] = unit, top[1] = n[k];
        }
    }
}

/* The same for beta, to y and its exponents, which are as in beta_block; leaves the occupancies of the row as well. */
static void SFN(beta_alone)(const FN(work) *w, const STATE *m, const STATE *exps, int64_t apart, STATE *y,
                            STATE *y_exps, int run, int r, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *skip = EDGED(w->skip, 0), *units = OWN(w->slot->exps) + run * 2 * Lp;
    STATE *row = OWN(w->slot->rows) + 3 * r * Lp;
    REAL *occupied = w->occupied + r * w->o_step;
    SV(t) stay = SV(set1)(w->s->simple ? 2 * DEAD : 0), blank = SV(set1)(OWN(w->eb)[r]);
    STATE top[2] = {(STATE)w->log2_p, 0};
    if (w->grid > 0) SFN(row_top)(w, exps, apart, run, i0, i1, top);
    SV(t) total = SV(set1)(top[0]), rest = SV(set1)(top[1]), most = SV(set1)(w->grid > 0 ? 0 : MOST_EXPONENT);
    SV(t) l_after = SV(set1)(0), b_after = l_after, labels = l_after, blanks = l_after;
    SV(t) el_after = SV(set1)(DEAD), eb_after = el_after;
    for (int64_t i = i1 - SW; i >= i0; i -= SW) {
        SV(t) l = SV(load)(m + i), b = SV(load)(m + apart + i);
        SV(t) el = SV(load)(exps + i), eb = SV(load)(exps + apart + i);
        SV(t) l_down = SV(shift_down)(l, l_after), b_down = SV(shift_down)(b, b_after);
        SV(t) ed = SV(shift_down)(eb, eb_after);
        SV(t) es = SV(add)(SV(shift_down)(el, el_after), SV(load)(skip + i + 1)), ea = SV(add)(el, stay);
        SV(t) nl = SV(max)(SV(max)(ea, ed), es), nb = SV(max)(eb, el);
        l_after = l;
        b_after = b;
        el_after = el;
        eb_after = eb;
        SV(t) sum = SV(add)(SV(scale)(b_down, SV(sub)(ed, nl)), SV(scale)(l_down, SV(sub)(es, nl)));
        sum = SV(add)(sum, SV(scale)(l, SV(sub)(ea, nl)));
        SV(t) n = SV(add)(SV(sub)(SV(load)(units + i), total), SV(sub)(nl, rest));
        SV(t) o = SV(scale)(SV(mul)(SV(load)(row + i), sum), SV(min)(n, most)), em = SV(load)(row + 2 * Lp + i);
        STORE_REAL(occupied + i, o); /* which may be where em was */
        labels = SV(add)(labels, o);
        SFN(put)(y + i, y_exps + i, SV(mul)(sum, em), nl);
        sum = SV(add)(SV(scale)(b, SV(sub)(eb, nb)), SV(scale)(l, SV(sub)(el, nb)));
        n = SV(add)(SV(sub)(SV(load)(units + Lp + i), total), SV(sub)(nb, rest));
        o = SV(scale)(SV(mul)(SV(load)(row + Lp + i), sum), SV(min)(n, most));
        blanks = SV(add)(blanks, o);
        SFN(put)(y + Lp + i, y_exps + Lp + i, SV(mul)(sum, blank), nb);
    }
    SFN(leave_sums)(row + i0, labels, blanks);
}

/* Adds to the exponents the whole binades that a WIDE row's emissions left out. */
static void SFN(add_wide)(FN(work) *w, int64_t t, int r, STATE *exps, int64_t i0, int64_t i1)
{
    const double *binades = FN(rare_emissions)(w, t, r);
    for (int64_t i = i0; i < i1; i++) {
        if (i < w->L) exps[i] += (STATE)binades[w->position[i]];
        exps[w->Lp + i] += (STATE)binades[w->position[w->L]];
    }
}

/* Sets the exponents of all states to one. */
static void SFN(fill)(STATE *exps, SV(t) unit, int64_t Lp, int64_t i0, int64_t i1)
{
    for (int64_t i = i0; i < i1; i += SW) {
        SV(store)(exps + i, unit);
        SV(store)(exps + Lp + i, unit);
    }
}

/* Chooses how alpha goes on from row r: in a flat run if it may, else in a run of states with exponents of their own,
 * else by that row alone; or, where w->again, as was noted the first time. Leaves the states as the choice needs them:
 * for a flat run in w->state, brought to its exponent; else split into mantissas and exponents, in w->start and
 * w->aligned (*parted), unless the row goes alone and they are split already (whole, as after another such row). */
static FN(choice) SFN(choose)(FN(work) *w, const STATE *m, const STATE *exps, int64_t t0, int r, int n, int whole,
                              int64_t i0, int64_t i1, int *parted)
{
    int64_t dead = 0;
    FN(choice) here = {0, 1, 0}, *note = NULL;
    if (w->notes && r % FN(SHORTEST) == 0) note = w->notes + (t0 + r) / FN(SHORTEST);
    int ragged = SFN(holds)(w->s->simple, i0, i1);
    int most = w->again || w->alone > 0 ? 0 : SFN(most_rows)(w, r, n, ragged, 1);
    w->arrived = FN(front)(w, t0) + r > w->L ? -1 : 0;
    if (w->again && note) here = *note;
    if (most) here.flat = here.rows = SFN(flat_run)(w, m, exps, r, most, &here.unit, i0, i1);
    if (most && !here.flat && w->slot->unusual) most = SFN(most_rows)(w, r, n, ragged, 0), here.rows = 1;
    *parted = !here.flat && (most || here.rows > 1 || !whole);
    if (here.flat) SFN(flatten)(m, exps, (STATE)here.unit, OWN(w->state), w->Lp, i0, i1);
    if (*parted) dead = SFN(split)(w, m, exps, i0, i1);
    if (dead && (most || here.rows > 1)) SFN(lend)(w, FN(front)(w, t0) + r, i0, i1, dead);
    if (*parted && most) here.rows = SFN(run_length)(w, r, most, i0, i1, &here.unit);
    if (here.rows > n - r) here.rows = n - r;
    if (dead && here.rows == 1) SFN(bury)(w, i0, i1);
    if (note) *note = here;
    return here;
}

/* Takes alpha through n rows of emissions, from and to w->state. keep: each row and its exponents stay in the slot. */
static void SFN(alpha_block)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1, int keep)
{
    int64_t Lp = w->Lp, edged = Lp + 2 * FN(PAD), apart = Lp;
    FN(slot) *slot = w->slot;
    int simple = w->s->simple, runs = 0, strain = 0, whole = 0, parted;
    STATE *state = OWN(w->state);
    const STATE *m = state, *exps = OWN(w->exps);
    const STATE *A = EDGED(w->aligned, 0), *B = EDGED(w->aligned, 1), *skip = EDGED(w->skip, 0);
    const STATE *ml = OWN(w->start) + FN(PAD), *mb = ml + edged;
    STATE *f = OWN(w->factors);
    w->alone = 0;
    w->weighed = 0;
    for (int r = 0; r < n; runs++) {
        slot->first_row[runs] = r;
        FN(choice) choice = SFN(choose)(w, m, exps, t0, r, n, whole, i0, i1, &parted);
        int rows = choice.rows, flat = choice.flat;
        if (parted) m = ml, exps = A, apart = edged;
        STATE *N = keep ? OWN(slot->exps) + (runs & (slot->most_runs - 1)) * 2 * Lp : OWN(w->exps);
        if (rows == 1 && !flat) {
            STATE *to = keep ? OWN(slot->rows) + 3 * r * Lp : state;
            SFN(alpha_alone)(w, m, exps, apart, to, N, r, i0, i1);
            if (slot->flags[r] & FN(ROW_WIDE)) SFN(add_wide)(w, t0 + r, r, N, i0, i1);
            slot->flat[runs] = 0;
            r++;
            m = to, exps = N, apart = Lp;
            whole = 1;
            if (w->alone-- <= 0) w->alone = BLOCK / 2 - 1;
            strain++;
            continue;
        }
        strain += !flat;
        SV(t) by = SV(set1)((STATE)choice.unit), lift = SFN(pow2)(by);
        slot->flat[runs] = flat;
        if (flat) SFN(fill)(N, by, Lp, i0, i1);
        for (int64_t i = i0; i < i1 && !flat; i += SW) {
            SV(t) a = SV(load)(A + i), b = SV(load)(B + i), up = SV(load)(A + i - 1);
            SV(store)(f + SFN(F_BLANK) * Lp + i, SFN(pow2)(SV(sub)(b, a)));
            SV(store)(f + SFN(F_LABEL) * Lp + i, SFN(pow2)(SV(add)(SV(sub)(up, a), SV(load)(skip + i))));
            SV(store)(f + SFN(F_STEP) * Lp + i, SFN(pow2)(SV(sub)(up, b)));
            SV(store)(N + i, SV(sub)(a, by));
            SV(store)(N + Lp + i, SV(sub)(b, by));
            SV(store)(state + i, SV(mul)(SV(load)(ml + i), lift));
            SV(store)(state + Lp + i, SV(mul)(SV(load)(mb + i), lift));
        }
        m = state, exps = N, apart = Lp;
        const STATE *with = OWN(flat ? w->passes : w->factors);
        int held = SFN(holds)(simple, i0, i1), step = held ? rows : FN(SHORTEST);
        for (int end = r + rows; r < end; r += step) {
            STATE *row = OWN(slot->rows) + 3 * r * Lp, *eb = OWN(w->eb) + r;
            if (held) SFN(alpha_run)(flat, m, state, keep, rows, row, eb, with, Lp, i0, i1);
            else SFN(alpha_rows)(simple, flat, m, state, keep, row, eb, with, Lp, i0, i1);
            m = keep ? row + 3 * (step - 1) * Lp : state;
        }
        whole = 0;
    }
    slot->first_row[slot->runs = runs] = n;
    slot->kept &= runs <= slot->most_runs;
    w->strain = w->strain + strain > 3 ? w->strain + strain - 3 : 0;
    for (int k = 0; k < 2 && keep; k++) {
        if (m != state) FN(copy)(state + k * Lp + i0, m + k * Lp + i0, (size_t)(i1 - i0) * sizeof *m);
        FN(copy)(OWN(w->exps) + k * Lp + i0, exps + k * Lp + i0, (size_t)(i1 - i0) * sizeof *exps);
    }
}

/* The exponent of the most probable state that has come to label `due`. */
static double SFN(crest)(const FN(work) *w, int64_t due, int64_t i0, int64_t i1)
{
    const STATE *m = OWN(w->state), *exps = OWN(w->exps);
    SV(t) high = SV(set1)(DEAD);
    int64_t from = due > i0 ? due / SW * SW : i0;
    for (int64_t k = 0; k < 2; k++, m += w->Lp, exps += w->Lp)
        for (int64_t i = from; i < i1; i += SW) {
            SV(t) e = SV(add)(SV(load)(exps + i), SV(logb)(SV(load)(m + i)));
            high = SV(max)(high, i < due ? SV(first)(due - i, SV(set1)(DEAD), e) : e);
        }
    return (double)SV(highest)(high);
}

/* Brings y to the exponents log2(p) - those of alpha in this run, in which products of mantissas are occupancies. They
 * suit beta too: no mantissa of it can be more than what makes an occupancy of 1, and what is too small for a number
 * weighs nothing in any row before. Where alpha is 0 beta may be anything, as long as it is a number. All this holds
 * while alpha's mantissas stay near their exponents: where all states share one, or where a state passes on what it
 * has from row to row, as labels of the simple topology do not. */
static void SFN(tie)(FN(work) *w, int run, int flat, STATE *y, STATE *exps, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp;
    const STATE *N = OWN(w->slot->exps) + run * 2 * Lp, *skip = EDGED(w->skip, 0);
    STATE *f = OWN(w->factors);
    SV(t) total = SV(set1)((STATE)w->log2_p), before = SV(set1)(DEAD);
    SV(t) most = SV(pow2)(SV(set1)(flat ? BELOW + 1 : MOST_EXPONENT - 1)); /* flat: tripled 16 times, still a number */
    SV(t) end = SV(set1)(2 * MOST_EXPONENT), minus = SV(sub)(SV(set1)(0), end);
    for (int k = 0; k < 2; k++)
        for (int64_t i = i0 + k * Lp; i < i1 + k * Lp; i += SW) {
            SV(t) own = SV(sub)(total, SV(load)(N + i)), n = SV(sub)(SV(load)(exps + i), own);
            n = SV(max)(SV(min)(n, end), minus);
            SV(t) half = SV(rint)(SV(mul)(n, SV(set1)((STATE)0.5))), m = SV(mul)(SV(load)(y + i), SFN(pow2)(half));
            SV(store)(y + i, SV(min)(SV(mul)(m, SFN(pow2)(SV(sub)(n, half))), most));
            SV(store)(exps + i, own);
        }
    for (int64_t i = i0; i < i1 && !flat; i += SW) {
        SV(t) l = SV(load)(N + i), b = SV(load)(N + Lp + i), up = SV(shift_up)(before, l);
        before = l;
        SV(store)(f + SFN(F_BLANK) * Lp + i, SFN(pow2)(SV(sub)(up, b)));
        SV(store)(f + SFN(F_LABEL) * Lp + i, SFN(pow2)(SV(add)(SV(sub)(up, l), SV(load)(skip + i))));
        SV(store)(f + SFN(F_STEP) * Lp + i, SFN(pow2)(SV(sub)(b, l)));
    }
}

/* Takes beta from the block's last row to its first, in alpha's runs, and leaves the occupancies of the block.
 * w->state (y) holds emission * beta of the row after. */
static void SFN(beta_block)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp, edged = Lp + 2 * FN(PAD);
    int simple = w->s->simple, whole = 0, held = SFN(holds)(simple, i0, i1);
    FN(slot) *slot = w->slot;
    const STATE *A = EDGED(w->aligned, 0), *ml = OWN(w->start) + FN(PAD);
    STATE *y = OWN(w->state), *exps = OWN(w->exps);
    if (!w->split) { /* in place of the emissions, row by row */
        w->occupied = (REAL *)(OWN(slot->rows) + 3 * Lp) - Lp;
        w->o_step = 3 * Lp * (int64_t)(sizeof(STATE) / sizeof(REAL));
    }
    for (int r = n, run = slot->runs - 1; r > 0; run -= r == slot->first_row[run]) {
        int rows = r - slot->first_row[run], flat = slot->flat[run];
        if (!flat && (rows == 1 || simple)) {
            r--;
            if (!whole) SFN(split)(w, y, exps, i0, i1);
            SFN(beta_alone)(w, whole ? y : ml, whole ? exps : A, whole ? Lp : edged, y, exps, run, r, i0, i1);
            if (slot->flags[r] & FN(ROW_WIDE)) SFN(add_wide)(w, t0 + r, r, exps, i0, i1);
            whole = 1;
            continue;
        }
        whole = 0;
        SFN(tie)(w, run, flat, y, exps, i0, i1);
        const STATE *with = OWN(flat ? w->passes : w->factors);
        int step = held ? rows : FN(SHORTEST);
        for (int end = r - rows; r > end; r -= step) {
            STATE *row = OWN(slot->rows) + 3 * (r - 1) * Lp, *eb = OWN(w->eb) + r - 1;
            REAL *o = w->occupied + (r - 1) * w->o_step;
            if (held) SFN(beta_run)(flat, rows, y, row, eb, with, o, w->o_step, Lp, i0, i1);
            else SFN(beta_rows)(simple, flat, y, row, eb, with, o, w->o_step, Lp, i0, i1);
        }
    }
}

/* Sets a recursion up: one blank is reached, and no other state. */
static void SFN(begin)(FN(work) *w, int64_t first_blank)
{
    STATE *state = OWN(w->state);
    memset(state, 0, (size_t)w->Lp * 2 * sizeof(STATE));
    memset(w->exps, 0, (size_t)w->Lp * 2 * sizeof(STATE));
    state[w->Lp + first_blank] = 1;
}

/* Notes which labels may follow the one before directly. */
static void SFN(link)(FN(work) *w)
{
    STATE *skip = EDGED(w->skip, 0);
    const int32_t *labels = w->s->labels;
    skip[0] = 2 * DEAD; /* below DEAD, so that a dead sum never takes its exponent from here */
    for (int64_t i = 1; i <= w->Lp; i++)
        skip[i] = i < w->L && (w->s->simple || labels[i] != labels[i - 1]) ? 0 : 2 * DEAD;
    for (int64_t i = 0; i < w->Lp; i++) OWN(w->passes)[i] = skip[i] == 0;
}

/* ln p from the last row of alpha; 0 where there is no probability. */
static int SFN(finish)(FN(work) *w)
{
    const STATE *state = OWN(w->state), *exps = OWN(w->exps);
    int64_t L = w->L;
    double b = (double)state[w->Lp + L], l = L ? (double)state[L - 1] : 0;
    double eb = (double)exps[w->Lp + L], el = L ? (double)exps[L - 1] : eb;
    int shift = 0;
    if (!(b > 0 || l > 0)) return 0;
    if (!(b > 0)) eb = el;
    if (!(l > 0)) el = eb;
    double top = eb > el ? eb : el;
    b = eb - top < -2000 ? 0 : ldexp(b, (int)(eb - top));
    l = el - top < -2000 ? 0 : ldexp(l, (int)(el - top));
    double mantissa = frexp(b + l, &shift), steps = w->grid > 0 ? rint(top / w->grid) * w->grid : 0;
    w->log2_p = top + shift;
    double counted = steps * LN2; /* before it is a number of binades, as which it may be past the largest double */
    w->ln_p = (w->grid > 0 ? counted / w->shrink : counted) + (top - steps + shift + log2(mantissa)) * LN2;
    return 1;
}
