/* The table of a block of rows: a column for each class, or for each used one, of logits and then of numerators; and
 * what is seen of the logits while they stand there. */

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

/* Fills a block's vectors past so many rows with copies of the one before. */
static inline void FN(repeat)(REAL *column, int rows)
{
    for (int r = W; r < BLOCK; r += W)
        if (r >= rows) V(store)(column + r, V(load)(column + r - W));
}
static inline void FN(repeat_used)(const FN(work) *w, int rows)
{
    for (int32_t k = 0; rows < BLOCK && k < w->used_count; k++) FN(repeat)(w->table + w->used[k], rows);
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

/* The largest of count classes of a vector of rows. */
static inline V(t) FN(largest)(const REAL *column, int64_t count)
{
    V(t) m0 = V(set1)(-INFINITY), m1 = m0;
    int64_t c = 0;
    for (; c + 2 <= count; c += 2) {
        m0 = V(max)(V(load)(column + c * BLOCK), m0);
        m1 = V(max)(V(load)(column + (c + 1) * BLOCK), m1);
    }
    if (c < count) m0 = V(max)(V(load)(column + c * BLOCK), m0);
    return V(max)(m0, m1);
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
                vd_t binades, part = FN(exact_exp)(below, NULL, &binades);
                vd_store(to + half * VD_LANES, vd_scale(part, binades));
            }
        }
    }
    memset(w->exact + (int64_t)w->used_count * BLOCK, 0, BLOCK * sizeof *w->exact); /* for labels past the last */
#endif
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
