/* The largest logit and the sum of each row where classes are many: rows are read where they stand, or gathered. */

/* Prefetches a block of rows that the hardware cannot guess: short rows lie far apart. */
EACH_ITS_OWN void FN(prefetch_rows)(int write, const FN(work) *w, const void *base, int64_t step, int64_t c_step,
                                    int64_t t0)
{
    int64_t size = (int64_t)ctcbind_bytes_of(w->s->dtype), bytes = w->C * size;
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
    int64_t size = (int64_t)ctcbind_bytes_of(s->dtype);
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

/* Takes one class of a vector of rows: as the first that has the top, or with its term for the sum. */
EACH_ITS_OWN void FN(take_class)(const REAL *at, int64_t class, V(t) top, V(t) *first, V(t) *sum, V(t) *others)
{
    V(t) x = V(load)(at);
    *first = V(if_equal)(x, top, V(set1)((REAL)class), *first);
    V(add_term)(1, x, top, sum, others);
}

/* What paths ask of a block of rows, whose classes are few: lanes hold rows. Half of the terms go to each of two sums,
 * which are no more than MOST_IN_TABLE / 2 of those that may all round the same way. */
static void FN(best_of_table)(const ctc_sample *s, int64_t t0, int n, REAL *table, ctc_best *to)
{
    REAL tops[BLOCK], rests[BLOCK], firsts[BLOCK];
    int64_t C = s->C;
    BY_TYPE(read_block, s, t0, n, table);
    for (int r = 0; r < n; r += W) {
        V(t) top = FN(largest)(table + r, C), first = V(set1)(0), s0 = first, s1 = first, others = first;
        int64_t c = C - 1; /* from the last on, so that the first of equal ones stays */
        for (; c > 0; c -= 2) {
            FN(take_class)(table + c * BLOCK + r, c, top, &first, &s0, &others);
            FN(take_class)(table + (c - 1) * BLOCK + r, c - 1, top, &first, &s1, &others);
        }
        if (c == 0) FN(take_class)(table + r, 0, top, &first, &s0, &others);
        V(store)(tops + r, top);
        V(store)(firsts + r, first);
        V(store)(rests + r, V(add)(V(add)(s0, s1), V(sub)(V(set1)((REAL)(C - 1)), others)));
    }
    for (int r = 0; r < n; r++) to[r] = (ctc_best){(double)tops[r], (double)rests[r], (int64_t)firsts[r]};
}

/* The same of one row. */
static void FN(best_of_row)(const ctc_sample *s, int64_t t, void *room, ctc_best *to)
{
    const int ahead = FN(rows_ahead)(s);
    const REAL *own = NULL;
    REAL top, rest;
    if (s->x_c != 1) {
        BY_TYPE(gather_row, s, t, room);
        own = room;
    }
    BY_TYPE_ROW(row_sum, &top, &rest);
    *to = (ctc_best){(double)top, (double)rest, BY_TYPE_ROW(first_of, top)};
}

static void FN(best)(const ctc_sample *s, int64_t t0, int n, void *room, ctc_best *to)
{
    if (s->C <= (IS_DOUBLE ? MOST_IN_DOUBLES : MOST_IN_TABLE) && n > BLOCK / 4) FN(best_of_table)(s, t0, n, room, to);
    else
        for (int r = 0; r < n; r++) FN(best_of_row)(s, t0 + r, room, to + r);
}

static void FN(soft)(const ctc_sample *s, int64_t t, double top, double factor, void *to)
{
    const int ahead = FN(rows_ahead)(s);
    const REAL *own = NULL;
    if (s->x_c != 1) {
        BY_TYPE(gather_row, s, t, to);
        own = to;
    }
    BY_TYPE_ROW(row_softmax, (REAL)top, (REAL)factor, to);
}
