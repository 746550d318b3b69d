/* From the logits of a block of rows to what each label and the blank emit there, relative to one reference a row. */

/* BY_TYPE calls what typed.inc.h has for the logits' type; BY_TYPE_ROW gives it row t and the one to be read next. `own`
 * is the row with its classes gathered, or NULL. */
#define ROW(type) ((const type *)s->x + t * s->x_t)
#define ROW_AHEAD(type) ((const type *)s->x + (t + ahead >= 0 && t + ahead < w->T ? t + ahead : t) * s->x_t)
#define REAL_ROWS own ? own : ROW(REAL), s->C, own ? own : ROW_AHEAD(REAL)
#if IS_DOUBLE
#define BY_TYPE(name, ...) FN(name##_real)(__VA_ARGS__)
#define BY_TYPE_ROW(name, ...) FN(name##_real)(REAL_ROWS, __VA_ARGS__)
#else
#define BY_TYPE(name, ...)                                                                                    \
    (s->dtype == CTCBIND_FLOAT32   ? FN(name##_real)(__VA_ARGS__)                                             \
     : s->dtype == CTCBIND_FLOAT16 ? FN(name##_half)(__VA_ARGS__)                                             \
                                   : FN(name##_bfloat)(__VA_ARGS__))
#define BY_TYPE_ROW(name, ...)                                                                                \
    (own || s->dtype == CTCBIND_FLOAT32 ? FN(name##_real)(REAL_ROWS, __VA_ARGS__)                             \
     : s->dtype == CTCBIND_FLOAT16 ? FN(name##_half)(ROW(uint16_t), s->C, ROW_AHEAD(uint16_t), __VA_ARGS__)   \
                                   : FN(name##_bfloat)(ROW(uint16_t), s->C, ROW_AHEAD(uint16_t), __VA_ARGS__))
#endif

enum { FN(NO_PATH) = 1, FN(NOT_A_NUMBER) = 2 }; /* why a sample failed */

static void FN(list_used)(FN(work) *w)
{
    const ctc_sample *s = w->s;
    int32_t count = 0, seen[MOST_DENSE];
    if (w->dense) memset(seen, 0, (size_t)w->C * sizeof *seen);
    for (int64_t i = 0; i <= w->L; i++) {
        int32_t c = i < w->L ? s->labels[i] : s->blank, column = (w->dense ? c : (int32_t)i) * BLOCK;
        if (!w->dense || !seen[c]) {
            w->used[count] = column;
            w->classes[count++] = c;
            if (w->dense) seen[c] = count;
        }
        w->column[i < w->L ? i : w->Lp] = column;
        w->position[i] = w->dense ? seen[c] - 1 : (int32_t)i;
    }
    for (int64_t i = w->L; i < w->Lp; i++) w->column[i] = (int32_t)w->U * BLOCK;
    w->used_count = count;
}

/* The used logits of a row, less a reference. Those at +inf share all the probability. */
static void FN(against)(const FN(work) *w, int64_t t, double reference, double *d)
{
    const ctc_sample *s = w->s;
    REAL *x = w->gathered;
    BY_TYPE(gather, s, t, w->classes, w->used_count, x, 1);
    if (w->top[t] == INFINITY)
        for (int32_t k = 0; k < w->used_count; k++) x[k] = x[k] == INFINITY ? 0 : -INFINITY;
    for (int32_t k = 0; k < w->used_count; k++) d[k] = (double)x[k] - reference;
}

/* Sums of exponents must be exact in a double, or alpha and beta would not meet. Where logits are so large that their
 * binades do not add up exactly, they are counted in whole steps of a grid. Paths that differ by a step differ by more
 * than a float can show, so that a binade may as well stand for a nat; or for 1 / shrink nats, lest sums of the
 * largest doubles fall below DEAD. */
static void FN(set_grid)(FN(work) *w)
{
    const ctc_sample *s = w->s;
    double most = 0;
    for (int64_t t = 0; t < w->T; t++) {
        BY_TYPE(gather, s, t, w->classes, w->used_count, w->gathered, 1);
        for (int32_t k = 0; k < w->used_count; k++) {
            double x = fabs((double)w->gathered[k]);
            if (x < INFINITY && x > most) most = x;
        }
    }
    w->most = most < w->limit ? most : w->limit;
    double bits = log2(w->most) + log2(4 * (double)w->all);
    w->shrink = bits < 900 ? 1 : 0x1p-200;
    w->grid = bits < GRID_BITS ? 0 : exp2(ceil(bits) - 52) * w->shrink;
}

/* Whether set_grid may find that a grid is needed, by the rows so far. */
static int FN(wants_grid)(const FN(work) *w)
{
    V(t) far = V(set1)(0);
    if (!w->spreads || w->grid >= 0) return 0;
    for (int r = 0; r < BLOCK; r += W) far = V(max)(far, V(load)(w->far + r));
    return (double)V(highest)(far) * 4 * (double)w->all > exp2(GRID_BITS - 1);
}

/* Whether forward has to run again with a finer grid: where the best path costs far less than the largest logits,
 * steps as coarse as those need would be most of the loss. */
static int FN(refine_grid)(FN(work) *w)
{
    double limit = 1000 - w->ln_p + 2 * (double)w->T * w->grid / w->shrink; /* and what rounding can have added */
    if (!(limit < w->most / 2)) return 0;
    w->limit = limit;
    FN(set_grid)(w);
    return 1;
}

/* exp(d) = returned * 2^*binades, those in whole steps of the grid. */
static double FN(grid_exp)(const FN(work) *w, double d, double *binades)
{
    double steps = rint(d * w->shrink / w->grid) * w->grid, rest = d - steps / w->shrink;
    if (steps == 0 && d < -600) steps = -w->grid; /* far below, if less than a step */
    *binades = steps;
    return fabs(rest) < 600 ? exp(rest) : 1;
}

/* Whether a row's logits are those of the row before. */
static int FN(same_row)(const FN(work) *w, int64_t t)
{
    const ctc_sample *s = w->s;
    int64_t size = s->dtype == CTCBIND_FLOAT64 ? 8 : s->dtype == CTCBIND_FLOAT32 ? 4 : 2;
    const char *row = (const char *)s->x + t * s->x_t * size;
    return s->x_c == 1 && memcmp(row, row - s->x_t * size, (size_t)(s->C * size)) == 0;
}

/* exp(d) = returned * 2^n, with the digits of doubles however large d is. */
static inline vd_t FN(exact_exp)(vd_t d, vd_t *n)
{
    vd_t b = vd_mul(d, vd_set1(LOG2E)), minus = vd_sub(vd_set1(0), b);
    *n = vd_rint(b);
    /* what the product has rounded away, and the digits of log2(e) that its double lacks */
    vd_t low = vd_fma(d, vd_set1(2.0355273740931033e-17), vd_fma(d, vd_set1(LOG2E), minus));
    return vd_exp_series(vd_mul(vd_add(vd_sub(b, *n), low), vd_set1(LN2)));
}

/* What the used classes emit in a rare row, to w->rare_e by position. Returns the whole binades that emissions of a
 * WIDE row leave out. */
static const double *FN(rare_emissions)(FN(work) *w, int64_t t, int r)
{
    double *e = w->rare_e, *binades = w->rare_binades;
    int wide = w->slot->flags[r] & FN(ROW_WIDE);
    vd_t least = vd_set1(wide ? -INFINITY : -1e6); /* what is at -inf becomes 0 by itself where rows are not wide */
    FN(against)(w, t, w->slot->reference[r], e);
    if (wide && w->grid > 0)
        for (int32_t k = 0; k < w->used_count; k++)
            if (e[k] > -INFINITY) e[k] = FN(grid_exp)(w, e[k], &binades[k]);
            else e[k] = binades[k] = 0; /* -inf, or so far below that the difference overflows */
    else
        for (int32_t k = 0; k < w->used_count; k += VD_LANES) {
            vd_t n, part = FN(exact_exp)(vd_max(vd_load(e + k), least), &n);
            vd_store(e + k, wide ? part : vd_scale(part, n));
            vd_store(binades + k, n);
        }
    if (wide && (w->slot->flags[r] & FN(ROW_ZERO) || w->limit < INFINITY))
        for (int32_t k = 0; k < w->used_count; k++)
            if (w->gathered[k] == -INFINITY || (double)w->gathered[k] - w->slot->reference[r] < -w->limit)
                e[k] = binades[k] = 0;
    return binades;
}

/* The reference of a rare row: one with an infinite logit, or with used classes far below the top. */
static void FN(rare_reference)(FN(work) *w, int64_t t, int r, double low, double high)
{
    double top = (double)w->top[t], first = top == INFINITY ? 0 : top, *d = w->rare_e;
    int zero = 0;
    if (low == -INFINITY || top == INFINITY) {
        vd_t least = vd_set1(INFINITY), most = vd_set1(-INFINITY), none = most, zeros = vd_set1(0);
        FN(against)(w, t, 0, d);
        for (int32_t k = 0; k < VD_LANES; k++) d[w->used_count + k] = d[0];
        for (int32_t k = 0; k < w->used_count; k += VD_LANES) {
            vd_t x = vd_load(d + k);
            most = vd_max(most, x);
            least = vd_min(least, vd_if_equal(x, none, vd_set1(INFINITY), x));
            zeros = vd_count_equal(x, none, zeros);
        }
        low = -vd_highest(vd_sub(vd_set1(0), least));
        high = vd_highest(most);
        zero = vd_highest(zeros) > 0;
        if (high > -INFINITY) w->far[r] = (REAL)fmax((double)w->far[r], fmax(-low, high));
    }
    if (high == -INFINITY) low = high = first;
    double reference = first - high <= REFERENCE_SLACK ? first : high;
    w->slot->flags[r] = zero ? FN(ROW_ZERO) : 0;
    w->slot->reference[r] = reference;
    w->range[r] = (REAL)((reference - low) * LOG2E);
}

static inline void FN(used_bounds)(const FN(work) *w, REAL *low_out, REAL *high_out)
{
    for (int r = 0; r < BLOCK; r += W) {
        V(t) low = V(set1)(INFINITY), high = V(set1)(-INFINITY);
        for (int32_t k = 0; k < w->used_count; k++) {
            V(t) x = V(load)(w->table + w->used[k] + r);
            low = V(min)(x, low);
            high = V(max)(x, high);
        }
        V(store)(low_out + r, low);
        V(store)(high_out + r, high);
    }
}

/* Sets references and ranges of a block's rows, but for those of infinite logits. Returns whether its emissions are to
 * be computed in doubles: so they are too where a class at -inf makes a row look wide. */
static inline int FN(refer)(FN(work) *w, const REAL *top, const REAL *low_in, const REAL *high_in)
{
    V(t) slack = V(set1)(REFERENCE_SLACK), zero = V(set1)(0), infinite = V(set1)(INFINITY), widest = zero;
    for (int r = 0; r < BLOCK; r += W) {
        V(t) first = V(load)(top + r), low = V(load)(low_in + r), high = V(load)(high_in + r);
        V(t) ahead = V(max)(V(sub)(first, high), slack), far = V(max)(V(sub)(zero, low), high);
        V(t) range = V(mul)(V(sub)(first, low), V(set1)((REAL)1.4426951));
        V(store)(w->relative + r, V(if_equal)(ahead, slack, first, high));
        V(store)(w->range + r, range);
        widest = V(max)(range, widest);
        far = V(if_equal)(far, infinite, zero, far); /* rare_reference counts the others of that row */
        V(store)(w->far + r, V(max)(far, V(load)(w->far + r)));
    }
    w->widest = (double)V(highest)(widest);
    return w->exactly = !IS_DOUBLE && (w->careful || (w->doubles && w->widest > TABLE_RANGE));
}

/* Keys, to tell rows apart whose used logits differ by 2^-10 or more; logits past 2^13 count as 2^13. */
static inline void FN(used_keys)(const FN(work) *w, REAL *keys)
{
    const V(t) most = V(set1)(0x1p13f), least = V(set1)(-0x1p13f);
    for (int r = 0; r < BLOCK; r += W) {
        V(t) key = V(set1)(0);
        for (int32_t k = 0; k < w->used_count; k++) {
            V(t) x = V(max)(V(min)(V(load)(w->table + w->used[k] + r), most), least);
            key = V(fma)(key, V(set1)((REAL)0.6180339), V(rint)(V(mul)(x, V(set1)(1024))));
        }
        V(store)(keys + r, key);
    }
}

/* Whether differences of the used logits in a vector of rows need care: the logits are so large that differences round
 * more than they should, or rows so many that even small roundings add up. */
static inline int FN(large)(const FN(work) *w, const REAL *low, const REAL *high, int r)
{
    return w->all >= MANY_ROWS || V(highest)(V(max)(V(sub)(V(set1)(0), V(load)(low + r)), V(load)(high + r))) > 8;
}

/* Puts exp(x - top) in the place of x, and adds it to *sum and 1 to *n unless x is the top. */
EACH_ITS_OWN void FN(numerator)(int large, const FN(apart) *apart, REAL *at, V(t) *sum, V(t) *n)
{
    V(t) x = V(load)(at), e = large ? V(exp_apart)(x, apart) : V(exp)(V(sub)(x, apart->top));
    V(store)(at, e);
    V(add_others)(x, apart->top, e, sum, n);
}

/* The same for count classes of a vector of rows. Returns the sums, each without one of the largest. */
EACH_ITS_OWN V(t) FN(numerators)(int large, REAL *column, int64_t count, V(t) top)
{
    enum { PART = 32 }; /* equal terms round the same way each time they are added: not many to one sum */
    V(t) sum = V(set1)(0), n0 = sum, n1 = sum;
    FN(apart) apart = FN(set_apart)(top);
    for (int64_t c = 0; c < count;) {
        int64_t end = count - c < PART ? count : c + PART;
        V(t) s0 = V(set1)(0), s1 = s0;
        for (; c + 2 <= end; c += 2) {
            FN(numerator)(large, &apart, column + c * BLOCK, &s0, &n0);
            FN(numerator)(large, &apart, column + (c + 1) * BLOCK, &s1, &n1);
        }
        if (c < end) FN(numerator)(large, &apart, column + c++ * BLOCK, &s0, &n0);
        sum = V(add)(sum, V(add)(s0, s1));
    }
    V(t) ones = V(sub)(V(set1)((REAL)(count - 1)), V(add)(n0, n1));
    return V(add)(sum, ones);
}

/* What each used class emits in a block of rows, by position, with the digits of doubles. Taken from the logits, before
 * numerators take their place in the table. */
static void FN(exact_table)(const FN(work) *w)
{
#if IS_DOUBLE
    (void)w; /* the table has them */
#else
    const vd_t least = vd_set1(-1e6); /* what is at -inf becomes 0 by itself */
    for (int r = 0; r < BLOCK; r += W) {
        vd_t reference[W / VD_LANES], x[W / VD_LANES];
        double *to = w->exact + r;
        vf_to_double(V(load)(w->relative + r), reference);
        for (int32_t k = 0; k < w->used_count; k++, to += BLOCK) {
            vf_to_double(V(load)(w->table + w->used[k] + r), x);
            for (int half = 0; half < W / VD_LANES; half++) {
                vd_t below = vd_max(vd_sub(x[half], reference[half]), least);
                vd_t binades, part = FN(exact_exp)(below, &binades);
                vd_store(to + half * VD_LANES, vd_scale(part, binades));
            }
        }
    }
    memset(w->exact + (int64_t)w->used_count * BLOCK, 0, BLOCK * sizeof *w->exact); /* for labels past the last */
#endif
}

/* Prefetches a block of rows that the hardware cannot guess: short rows lie far apart. */
EACH_ITS_OWN void FN(prefetch_rows)(int write, const FN(work) *w, const void *base, int64_t step, int64_t c_step,
                                    int64_t t0)
{
    int64_t size = w->s->dtype == CTCBIND_FLOAT64 ? 8 : w->s->dtype == CTCBIND_FLOAT32 ? 4 : 2, bytes = w->C * size;
#define ASK(p) (write ? vec_prefetch_write(p) : vec_prefetch(p))
    if (c_step != 1) return;
    int64_t first = t0 > 0 ? t0 : 0, rows = (t0 + BLOCK < w->T ? t0 + BLOCK : w->T) - first;
    const char *row = (const char *)base + first * step * size, *last = row + bytes - 1;
    step *= size;
    if (bytes <= 64) /* the same number for each row, so that no branch is guessed wrong */
#pragma GCC unroll 4
        for (; rows > 0; rows--, row += step, last += step) {
            ASK(row);
            ASK(last);
        }
    else if (bytes <= 128)
#pragma GCC unroll 4
        for (; rows > 0; rows--, row += step, last += step) {
            ASK(row);
            ASK(row + 64);
            ASK(last);
        }
    for (; rows > 0; rows--, row += step, last += step) {
        for (int64_t k = 0; k < bytes; k += 64) ASK(row + k);
        ASK(last);
    }
#undef ASK
}

/* How many rows ahead a long row is prefetched: a row of a few kilobytes is read before memory answers. Where rows
 * follow each other in memory the hardware fetches the next by itself. */
static int FN(rows_ahead)(const ctc_sample *s)
{
    int64_t size = s->dtype == CTCBIND_FLOAT64 ? 8 : s->dtype == CTCBIND_FLOAT32 ? 4 : 2;
    if (s->x_t == s->C || s->x_t == -(int64_t)s->C) return 1;
    if (few_lines() && into_nearest(s->C * size)) return s->C * size <= 4096 ? 2 : 1;
    return s->C * size <= 4096 ? 4 : 2;
}

/* Strided classes are gathered: where rows lie closer than they, a block of rows at once, else row by row. */
static void FN(gather_rows)(FN(work) *w, int64_t t0, int n)
{
    const ctc_sample *s = w->s;
    if (closer(s->x_t, s->x_c)) BY_TYPE(gather_block, s, t0, n, w->stage, FN(gathered_step)(s->C));
}
static REAL *FN(gathered_row)(FN(work) *w, int64_t t, int r)
{
    const ctc_sample *s = w->s;
    if (closer(s->x_t, s->x_c)) return w->stage + r * FN(gathered_step)(s->C);
    BY_TYPE(gather_row, s, t, w->stage);
    return w->stage;
}

/* Sums rows that were gathered, and leaves their softmax, times the weight, in the gradient. */
static void FN(early_block)(FN(work) *w, int64_t t0, int n, REAL *top, REAL *rest)
{
    const ctc_sample *s = w->s;
    REAL factor[BLOCK];
    for (int r = 0; r < n; r++) {
        REAL *row = FN(gathered_row)(w, t0 + r, r);
        FN(row_sums_real)(row, s->C, row, top + r, rest + r, row, (FN(late)){NULL, NULL, 0}, 0);
        factor[r] = (REAL)s->weight * (1 / (1 + rest[r]));
        for (int64_t c = 0; top[r] == INFINITY && c < s->C; c++) row[c] = row[c] != 0; /* the infinite ones share */
    }
    FN(scatter_block_real)(s, t0, n, w->stage, FN(gathered_step)(s->C), factor);
}

/* The largest logit and the other terms of each of n rows. */
static void FN(sum_rows)(FN(work) *w, int64_t t0, int n, REAL *top, REAL *rest)
{
    const ctc_sample *s = w->s;
    const int ahead = FN(rows_ahead)(s);
    FN(gather_rows)(w, t0, n);
    if (w->early && s->g_c != 1) {
        FN(early_block)(w, t0, n, top, rest);
        return;
    }
    for (int r = 0; r < n; r++) {
        int64_t t = t0 + r;
        const REAL *own = s->x_c == 1 ? NULL : FN(gathered_row)(w, t, r);
        if (w->early) FN(row_early)(REAL_ROWS, s, t, w->row, &w->late, top + r, rest + r);
        else BY_TYPE_ROW(row_sum, top + r, rest + r);
    }
    FN(write_late)(&w->late, s->C, s->stream);
}

/* Takes the logarithm of what the rows' sums have multiplied to. */
static void FN(settle)(FN(work) *w)
{
    w->base -= log1p(w->more);
    w->more = 0;
}

/* Fills a table whose columns are the used classes, in their order, with their logits. */
static void FN(used_logits)(const FN(work) *w, int64_t t0, int n)
{
    const ctc_sample *s = w->s;
    for (int r = 0; r < BLOCK; r++) /* rows past n repeat the last */
        BY_TYPE(gather, s, t0 + (r < n ? r : n - 1), w->classes, w->U, w->table + r, BLOCK);
}

/* The numerators of those, and the bounds of their logits. */
static void FN(used_table)(FN(work) *w, int64_t t0, int n, const REAL *top, REAL *low, REAL *high, REAL *keys)
{
    REAL *table = w->table;
    FN(used_logits)(w, t0, n);
    if (keys && w->few) FN(used_keys)(w, keys);
    FN(used_bounds)(w, low, high);
    if (!w->split && FN(refer)(w, top, low, high)) FN(exact_table)(w);
    for (int r = 0; r < BLOCK; r += W) {
        if (FN(large)(w, low, high, r)) FN(numerators)(1, table + r, w->U, V(load)(top + r));
        else FN(numerators)(0, table + r, w->U, V(load)(top + r));
    }
}

/* The same for a block of a split sample, whose rows are summed. */
static void FN(shared_table)(FN(work) *w, int64_t t0, int n)
{
    REAL *top = w->top + t0, *rest = w->rests + t0, *low = w->bounds + 3 * t0;
    for (int r = n; r < BLOCK; r++) top[r] = top[n - 1], rest[r] = rest[n - 1];
    w->table = w->tables + t0 / BLOCK * w->table_size;
    FN(used_table)(w, t0, n, top, low, low + BLOCK, low + 2 * BLOCK);
}

/* How many of n rows have nearly the sum of the row before. */
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
#endif

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
        BY_TYPE(read_block, s, t0, n, table);
        FN(prefetch_rows)(0, w, s->x, s->x_t, s->x_c, t0 + (first_pass ? BLOCK : -BLOCK));
        if (counts && w->few) FN(used_keys)(w, keys);
        for (int r = 0; r < BLOCK; r += W) {
            int64_t c = 0, C = w->C;
            V(t) m0 = V(set1)(-INFINITY), m1 = m0;
            for (; c + 2 <= C; c += 2) {
                m0 = V(max)(V(load)(table + c * BLOCK + r), m0);
                m1 = V(max)(V(load)(table + (c + 1) * BLOCK + r), m1);
            }
            if (c < C) m0 = V(max)(V(load)(table + c * BLOCK + r), m0);
            V(store)(top + r, V(max)(m0, m1));
        }
        FN(used_bounds)(w, low, high);
        if (FN(refer)(w, top, low, high)) FN(exact_table)(w);
        for (int r = 0; r < BLOCK; r += W) {
            V(t) m0 = V(load)(top + r);
            int64_t C = w->C;
            if (FN(large)(w, low, high, r)) V(store)(rest + r, FN(numerators)(1, table + r, C, m0));
            else V(store)(rest + r, FN(numerators)(0, table + r, C, m0));
        }
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
