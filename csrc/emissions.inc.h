/* From the logits of a block of rows to what each label and the blank emit there, relative to one reference a row. */

enum { FN(NO_PATH) = 1, FN(NOT_A_NUMBER) = 2 }; /* why a sample failed */

/* How many of n rows have nearly the sum of the row before: to within 2^-12 of it. */
static inline int32_t FN(count_alike)(const REAL *rest, int n)
{
    V(t) before = V(set1)(-INFINITY), zero = V(set1)(0), any = zero;
    REAL alike[BLOCK];
    int32_t count = 0;
    for (int r = 0; r < BLOCK; r += W) {
        V(t) here = V(load)(rest + r), more = V(sub)(here, V(shift_up)(before, here));
        V(t) apart = V(fnma)(here, V(set1)((REAL)0x1p-12), V(max)(more, V(sub)(zero, more)));
        V(t) near = V(count_equal)(V(max)(apart, zero), zero, zero);
        before = here;
        any = V(max)(any, near);
        V(store)(alike + r, near);
    }
    if (V(highest)(any) > 0) /* which is rare */
        for (int r = 0; r < n; r++) count += (int32_t)alike[r];
    return count;
}

#if !IS_DOUBLE
/* How many of n rows have a key that an earlier one had too. Of the keys that belong in one place of the table the last
 * two stay there, or two rows in turns could hide each other. */
static inline int32_t FN(count_echoes)(int32_t *seen, int bits, const REAL *keys, int n)
{
    int32_t count = 0;
    for (int r = 0; r < n; r++) {
        uint32_t key;
        memcpy(&key, keys + r, sizeof key);
        int32_t *place = seen + 2 * (size_t)(key * 2654435769u >> (33 - bits)), last = place[0];
        count += (last == (int32_t)key) | (place[1] == (int32_t)key);
        place[0] = (int32_t)key;
        place[1] = last;
    }
    return count;
}

/* Counts, class by class, the rows of a block that emit exactly what a noted row of the last counted block did, and
 * notes a row of this block for the next. Emissions of 0 and 1 do not count, as they are not rounded. */
static void FN(count_stuck)(FN(work) *w, int64_t block)
{
    const REAL *table = w->table;
    REAL *emitted = w->emitted;
    int64_t row = block / STUCK_BLOCKS % BLOCK;
    V(t) any[BLOCK / W];
    for (int j = 0; j < BLOCK / W; j++) any[j] = V(set1)(0);
    for (int32_t k = 0; k < w->used_count; k++)
        for (int j = 0; j < BLOCK / W; j++)
            any[j] = V(count_equal)(V(load)(table + w->used[k] + j * W), V(set1)(emitted[k]), any[j]);
    for (int j = 1; j < BLOCK / W; j++) any[0] = V(add)(any[0], any[j]);
    int some = V(highest)(any[0]) > 0; /* which is rare */
    for (int32_t k = 0; k < w->used_count; k++) {
        const REAL *at = table + w->used[k];
        for (int r = 0; some && r < BLOCK; r++) w->sticks[k] += emitted[k] > 0 && at[r] == emitted[k];
        if (some && w->sticks[k] > (REAL)w->stuck) w->stuck = (int32_t)w->sticks[k];
        emitted[k] = at[row] < 1 ? at[row] : -1;
    }
}
#endif

/* Takes the logarithm of what the rows' sums have multiplied to. */
static void FN(settle)(FN(work) *w)
{
    w->base -= log1p(w->more);
    w->more = 0;
}

/* sums[j] stands for 1 + sums[j]: multiplies each of the first half by its counterpart in the second. */
EACH_ITS_OWN void FN(multiply)(const int half, double *sums)
{
    for (int j = 0; j < half; j++) sums[j] += sums[j + half] + sums[j] * sums[j + half];
}

/* Fills the table and the emissions of a block. The first pass also takes the references and row sums into base. */
static void FN(emissions)(FN(work) *w, int64_t block, int first_pass)
{
    const ctc_sample *s = w->s;
    int64_t t0 = block * BLOCK;
    int n = w->T - t0 < BLOCK ? (int)(w->T - t0) : BLOCK;
    int counts = first_pass && w->seen && block % ECHO_BLOCKS(w->all) == 0;
    REAL rest[BLOCK] = {0}, low[BLOCK], high[BLOCK], keys[BLOCK], *top = w->top + t0, *table = w->table;
    if (w->dense) {
        const int rows = FN(in_vectors)(n);
        BY_TYPE(read_block, s, t0, n, table);
        FN(repeat_used)(w, rows);
        FN(prefetch_rows)(0, w, s->x, s->x_t, s->x_c, t0 + (first_pass ? BLOCK : -BLOCK));
        if (counts && w->few) FN(used_keys)(w, keys);
        for (int r = 0; r < rows; r += W) V(store)(top + r, FN(largest)(table + r, w->C));
        FN(repeat)(top, rows);
        FN(used_bounds)(w, low, high);
        if (FN(refer)(w, top, low, high)) FN(exact_table)(w);
        for (int r = 0; r < rows; r += W) {
            V(t) m0 = V(load)(top + r);
            int64_t C = w->C;
            if (FN(large)(w, low, high, r)) V(store)(rest + r, FN(numerators)(1, table + r, C, m0));
            else V(store)(rest + r, FN(numerators)(0, table + r, C, m0));
        }
        FN(repeat)(rest, rows);
        FN(repeat_used)(w, rows);
    } else if (w->split) {
        memcpy(rest, w->rests + t0, sizeof rest);
        const REAL *bounds = w->bounds + 3 * t0;
        memcpy(low, bounds, sizeof low);
        memcpy(high, bounds + BLOCK, sizeof high);
        memcpy(keys, bounds + 2 * BLOCK, sizeof keys);
        if (FN(refer)(w, top, low, high)) { /* of the table only the logits are needed then */
            FN(used_logits)(w, t0, n);
            FN(exact_table)(w);
        }
    } else {
        if (first_pass) FN(sum_rows)(w, t0, n, top, rest);
        for (int r = n; r < BLOCK; r++) top[r] = top[n - 1], rest[r] = rest[n - 1];
        FN(used_table)(w, t0, n, top, low, high, counts ? keys : NULL);
    }

    for (int r = 0; r < BLOCK; r += W) V(store)(table + w->U * BLOCK + r, V(set1)(0));

    FN(slot) *slot = w->slot;
    int rare = 0;
    for (int r = 0; r < BLOCK; r++) {
        slot->flags[r] = 0;
        slot->reference[r] = (double)top[r];
        int common = w->range[r] <= TABLE_RANGE && w->relative[r] == top[r] && rest[r] < INFINITY;
        rare |= !common << r;
    }
    w->rare = rare &= (1 << n) - 1;
    slot->kept = 1;
    slot->unusual = rare;
    for (int r = 0; rare >> r; r++) {
        if (!(rare >> r & 1)) continue;
        if (rest[r] != rest[r]) {
            w->failed = FN(NOT_A_NUMBER);
            continue;
        }
        if (top[r] == -INFINITY) {
            if (!w->failed) w->failed = FN(NO_PATH);
            continue;
        }
        if (top[r] == INFINITY && w->dense) /* rest has counted those at +inf; all others have become exp(-inf) */
            for (int64_t c = 0; c < w->C; c++) {
                REAL *e = table + c * BLOCK + r;
                *e = *e != 0;
            }
        FN(rare_reference)(w, t0 + r, r, (double)low[r], (double)high[r]);
    }
    for (int r = n; r < BLOCK; r++) w->range[r] = w->range[n - 1];
    V(t) widest = V(set1)(0);
    REAL counted[BLOCK];
    for (int r = 0; r < BLOCK; r += W) {
        V(t) range = V(load)(w->range + r);
        widest = V(max)(widest, range);
        V(store)(counted + r, V(min)(range, V(set1)(RANGE_CEILING)));
    }
    w->widest = (double)V(highest)(widest);
    w->spreads |= w->widest > TABLE_RANGE;
    for (int r = n; r < BLOCK; r++) counted[r] = 0;
    slot->before[0] = 0;
    for (int r = 0; r < BLOCK; r += FN(SHORTEST)) {
        REAL here = (counted[r] + counted[r + 1]) + (counted[r + 2] + counted[r + 3]);
        slot->before[r / FN(SHORTEST) + 1] = slot->before[r / FN(SHORTEST)] + here;
    }
    w->binades += (double)slot->before[BLOCK / FN(SHORTEST)];
    if (first_pass || w->dense) {
        for (int r = 0; r < BLOCK; r++) w->inverse[t0 + r] = 1 / (1 + rest[r]);
        if (first_pass) {
            w->alike += FN(count_alike)(rest, n);
#if !IS_DOUBLE
            if (counts) w->echoes += FN(count_echoes)(w->seen, SEEN_BITS(w->all), w->few ? keys : rest, n);
            if (w->emitted && block % STUCK_BLOCKS == 0 && n == BLOCK) FN(count_stuck)(w, block);
#endif
            double sums[BLOCK];
            for (int r = 0; r < BLOCK; r++) sums[r] = r < n ? (double)rest[r] : 0;
            for (int r = 0; r < n && w->careful > 1; r++)
                if (top[r] < INFINITY) sums[r] = BY_TYPE(exact_sum, s, t0 + r, (double)top[r]);
            FN(multiply)(BLOCK / 2, sums);
            FN(multiply)(BLOCK / 4, sums);
            FN(multiply)(BLOCK / 8, sums);
            FN(multiply)(BLOCK / 16, sums);
            w->more += sums[0] + w->more * sums[0];
            if (w->more > 0x1p500) FN(settle)(w);
            for (int r = 0; rare >> r; r++) w->base += slot->reference[r] - (top[r] == INFINITY ? 0 : (double)top[r]);
        }
    }
}
