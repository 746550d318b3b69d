/* All that reads logits and writes gradients in their own type: XT, with XLOAD and XSTORE for vectors, XLOAD_N and
 * XSTORE_N for the first n <= W lanes of them, XONE and XOF for single numbers; XDIRECT where no conversion is
 * needed. */

/* How many classes ahead memory is prefetched where classes lie far apart, as the hardware does not guess such
 * steps. */
#define FAR 48

/* A row, with its classes side by side. */
static void XFN(gather_row)(const ctc_sample *s, int64_t t, REAL *to)
{
    const XT *x = (const XT *)s->x + t * s->x_t;
    for (int64_t c = 0; c < s->C; c++) to[c] = XONE(x[c * s->x_c]);
}

/* The same for a block of rows that lie closer than classes; each row a step from the one before. */
static void XFN(gather_block)(const ctc_sample *s, int64_t first, int count, REAL *to, int64_t step)
{
    const XT *x = (const XT *)s->x + first * s->x_t;
    int64_t C = s->C, c = 0;
    for (; s->x_t == 1 && count == BLOCK && c + W <= C; c += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) v[W];
            for (int k = 0; k < W; k++) {
                const XT *from = x + (c + k) * s->x_c + r;
                vec_prefetch(from + FAR * s->x_c);
                vec_prefetch(from + FAR * s->x_c + W - 1);
                v[k] = XLOAD(from);
            }
            V(transpose)(v);
            for (int k = 0; k < W; k++) V(store)(to + (r + k) * step + c, v[k]);
        }
    for (; c < C; c++)
        for (int r = 0; r < count; r++) to[r * step + c] = XONE(x[r * s->x_t + c * s->x_c]);
}

/* The other way round: rows, each times its factor, to a gradient in which they lie closer than classes. */
static void XFN(scatter_block)(const ctc_sample *s, int64_t first, int count, const REAL *from, int64_t step,
                               const REAL *factor)
{
    XT *g = (XT *)s->g + first * s->g_t;
    int64_t C = s->C, c = 0;
    for (; s->g_t == 1 && count == BLOCK && c + W <= C; c += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) v[W];
            for (int k = 0; k < W; k++) v[k] = V(mul)(V(load)(from + (r + k) * step + c), V(set1)(factor[r + k]));
            V(transpose)(v);
            for (int k = 0; k < W; k++) {
                XT *to = g + (c + k) * s->g_c + r;
                vec_prefetch_write(to + FAR * s->g_c);
                vec_prefetch_write(to + FAR * s->g_c + W - 1);
                XSTORE(to, v[k]);
            }
        }
    for (; c < C; c++)
        for (int r = 0; r < count; r++) g[r * s->g_t + c * s->g_c] = XOF(from[r * step + c] * factor[r]);
}

/* to[k * step] = the logit of the k-th of some classes */
static void XFN(gather)(const ctc_sample *s, int64_t t, const int32_t *classes, int64_t count, REAL *to, int64_t step)
{
    const XT *x = (const XT *)s->x + t * s->x_t;
    for (int64_t k = 0; k < count; k++) to[k * step] = XONE(x[classes[k] * s->x_c]);
}

/* The sum of exp(x - top) over all classes of a row but one of the largest, with the digits of doubles. */
static double XFN(exact_sum)(const ctc_sample *s, int64_t t, double top)
{
    const XT *x = (const XT *)s->x + t * s->x_t;
    double sum = 0, ties = -1;
    for (int64_t c = 0; c < s->C; c++) {
        double below = (double)XONE(x[c * s->x_c]) - top;
        if (below == 0) ties++;
        else sum += exp(below);
    }
    return sum + ties;
}

/* Whether rows this far apart evict each other from the first cache: then one row is finished before the next. */
static inline int XFN(collide)(int64_t step) { return step * (int64_t)sizeof(XT) % 4096 == 0; }

/* table[c][r] = logit of class c at row first + r, in whole vectors: rows past count repeat the last. */
static void XFN(read_block)(const ctc_sample *s, int64_t first, int count, REAL *table)
{
    const XT *rows[BLOCK], *x = (const XT *)s->x + first * s->x_t;
    const int end = FN(in_vectors)(count);
    int64_t C = s->C;
    for (int r = 0; r < end; r++) rows[r] = x + (r < count ? r : count - 1) * s->x_t;
    if (closer(s->x_t, s->x_c)) {
        for (int64_t c = 0; c < C; c++, x += s->x_c, table += BLOCK)
            if (s->x_t == 1 && count == BLOCK)
                for (int r = 0; r < BLOCK; r += W) V(store)(table + r, XLOAD(x + r));
            else
                for (int r = 0; r < end; r++) table[r] = XONE(x[(r < count ? r : count - 1) * s->x_t]);
        return;
    }
    if (s->x_c != 1) {
        for (int r = 0; r < end; r++)
            for (int64_t c = 0; c < C; c++) table[c * BLOCK + r] = XONE(rows[r][c * s->x_c]);
        return;
    }
    int by_row = C > W && XFN(collide)(s->x_t);
    for (int r = 0; by_row && r < end; r++) {
        REAL *to = table + r / W * W + r % W * BLOCK;
        int64_t c = 0;
        for (; c + W <= C; c += W) V(store)(to + c * BLOCK, XLOAD(rows[r] + c));
        if (c < C) V(store)(to + c * BLOCK, XLOAD_N(rows[r] + c, C - c));
    }
    for (int64_t c = 0; c < C; c += W)
        for (int r = 0; r < end; r += W) {
            V(t) v[W];
            REAL *to = table + c * BLOCK + r; /* which has room for whole vectors of classes */
            int64_t wide = C - c < W ? C - c : W;
            if (by_row)
                for (int k = 0; k < W; k++) v[k] = V(load)(to + k * BLOCK);
            else if (wide == W)
                for (int k = 0; k < W; k++) v[k] = XLOAD(rows[r + k] + c);
            else
                for (int k = 0; k < W; k++) v[k] = XLOAD_N(rows[r + k] + c, wide);
            V(transpose)(v);
            for (int k = 0; k < W; k++) V(store)(to + k * BLOCK, v[k]);
        }
}

/* Writes the rows of a table, each times its factor, and may use it up. */
static void XFN(write_block)(const ctc_sample *s, int64_t first, int count, REAL *table, const REAL *factor)
{
    int64_t C = s->C, step = s->g_t;
    XT *g = (XT *)s->g + first * step;
    if (closer(step, s->g_c)) {
        for (int64_t c = 0; c < C; c++, g += s->g_c, table += BLOCK)
            if (step == 1 && count == BLOCK)
                for (int r = 0; r < BLOCK; r += W) XSTORE(g + r, V(mul)(V(load)(table + r), V(load)(factor + r)));
            else
                for (int r = 0; r < count; r++) g[r * step] = XOF(table[r] * factor[r]);
        return;
    }
    if (s->g_c != 1) {
        for (int r = 0; r < count; r++)
            for (int64_t c = 0; c < C; c++) g[r * step + c * s->g_c] = XOF(table[c * BLOCK + r] * factor[r]);
        return;
    }
    int by_row = C > W && XFN(collide)(step);
    for (int64_t c = 0; c < C; c += W) { /* the table has room for whole vectors of classes */
        int64_t wide = C - c < W ? C - c : W;
        for (int r = 0; r < count; r += W) {
            V(t) v[W], f = V(load)(factor + r);
            REAL *from = table + c * BLOCK + r;
            for (int k = 0; k < W; k++) v[k] = V(mul)(V(load)(from + k * BLOCK), f);
            V(transpose)(v);
            int rows = count - r < W ? count - r : W;
            XT *to = g + r * step + c;
            if (by_row)
                for (int k = 0; k < W; k++) V(store)(from + k * BLOCK, v[k]);
            else if (rows == W && wide == W)
                for (int k = 0; k < W; k++, to += step) XSTORE(to, v[k]);
            else if (rows == W)
                for (int k = 0; k < W; k++, to += step) XSTORE_N(to, v[k], wide);
            else
                for (int k = 0; k < rows; k++, to += step) XSTORE_N(to, v[k], wide);
        }
    }
    for (int r = 0; by_row && r < count; r++) {
        const REAL *from = table + r / W * W + r % W * BLOCK;
        int64_t c = 0;
        for (; c + W <= C; c += W) XSTORE(g + r * step + c, V(load)(from + c * BLOCK));
        if (c < C) XSTORE_N(g + r * step + c, V(load)(from + c * BLOCK), C - c);
    }
}

#define ASK_AHEAD (1024 / (int64_t)sizeof(REAL)) /* elements */

/* The sum of exp(x[c] - top) from c to end, a whole number of pairs of vectors. others: leaves out those that equal the
 * top, and adds the number of the rest to *n. */
EACH_ITS_OWN V(t) XFN(terms)(int others, const XT *x, const XT *ahead, int64_t C, int64_t c, int64_t end, V(t) top,
                             V(t) *n, REAL *room, const FN(writer) *writer, V(t) held[2], int stream)
{
    const int near = into_nearest(C * (int64_t)sizeof *x);
    V(t) s0 = V(set1)(0), s1 = s0, r0 = s0, r1 = s0;
    for (; c < end; c += 2 * W) {
        V(t) v0 = XLOAD(x + c), v1 = XLOAD(x + c + W);
        for (size_t k = 0; k < 2 * W * sizeof *x; k += 64) vec_prefetch_far(near, (const char *)(ahead + c) + k);
        for (int64_t k = c + ASK_AHEAD; room && !stream && k < c + ASK_AHEAD + 2 * W; k += 64 / (int64_t)sizeof *room)
            vec_prefetch_write(room + (k < C ? k : C - 1)); /* else stores would wait for their lines */
        if (room && c < writer->end) FN(write_pair)(stream, writer, c, held);
        V(t) e0 = V(add_term)(others, v0, top, &s0, &r0), e1 = V(add_term)(others, v1, top, &s1, &r1);
        if (room) {
            V(store)(room + c, e0);
            V(store)(room + c + W, e1);
        }
    }
    if (others) *n = V(add)(*n, V(add)(r0, r1));
    return V(add)(s0, s1);
}

BY_ITSELF V(t) XFN(plain_terms)(const XT *x, const XT *ahead, int64_t C, int64_t c, int64_t end, V(t) top)
{
    return XFN(terms)(0, x, ahead, C, c, end, top, NULL, NULL, NULL, NULL, 0);
}

/* The largest logit of a row, and the sum of exp(logit - largest) without one of the largest: beside its 1 small terms
 * would be lost. ahead: a row that will be read soon, which the hardware cannot guess. room: where the exponentials
 * are kept, or NULL; it still holds those of the row before, `late`, which is written meanwhile. */
EACH_ITS_OWN void XFN(row_sums)(const XT *x, int64_t C, const XT *ahead, REAL *top_out, REAL *rest_out, REAL *room,
                                FN(late) late, int stream)
{
    /* Equal terms round the same way each time they are added. So at most FEW go to one sum, no more than a part where
     * ties are left out, and of more than MANY terms what the sum of those sums rounds away is kept (`lost`). */
    enum { PART = 16 * W, MOST_PARTS = 128, FEW = 64 * W, MANY = 1024 * (W - 1) };
    const int many = C > MANY;
    int64_t whole = C / (2 * W) * (2 * W), ties = 0, c = 0;
    int wider = 0; /* than PART are parts, as a power of two */
    V(t) highest[MOST_PARTS], top = V(set1)(-INFINITY); /* of each part, lane by lane */
    V(t) sum = V(set1)(0), lost = sum, n = sum, held[2] = {sum, sum};
    FN(writer) writer;
    FN(write_begin)(&writer, late, C);
    while (((int64_t)PART * MOST_PARTS << wider) < whole) wider++;
    const int64_t part = (int64_t)PART << wider;
    for (V(t) *to = highest; c < whole; to++) {
        int64_t end = whole - c < part ? whole : c + part;
        V(t) m0 = V(set1)(-INFINITY), m1 = m0;
        for (; c < end; c += 2 * W) {
            m0 = V(max)(XLOAD(x + c), m0);
            m1 = V(max)(XLOAD(x + c + W), m1);
        }
        *to = V(max)(m0, m1);
        top = V(max)(*to, top);
    }
    for (; c < C; c += W) {
        int64_t wide = C - c < W ? C - c : W;
        top = V(max)(V(first)(wide, XLOAD_N(x + c, wide), V(set1)(-INFINITY)), top);
    }
    *top_out = V(highest)(top);
    V(t) t = V(set1)(*top_out);
#define HOLDS_TOP(c) V(any_equal)(highest[(c) / PART >> wider], t)
    for (c = 0; c < whole;) {
        int64_t begin = c, few = whole - c < FEW ? whole : c + FEW;
        int others = HOLDS_TOP(c);
        do c = (c | (part - 1)) + 1;
        while (!others && c < few && !HOLDS_TOP(c));
        if (c > few) c = few;
        V(t) before = sum, added;
        if (others) {
            added = XFN(terms)(1, x, ahead, C, begin, c, t, &n, room, &writer, held, stream);
            ties += c - begin;
        }
#if XDIRECT
        else if (room) added = XFN(terms)(0, x, ahead, C, begin, c, t, NULL, room, &writer, held, stream);
#endif
        else added = XFN(plain_terms)(x, ahead, C, begin, c, t);
        sum = V(add)(before, added);
        if (many) lost = V(add)(lost, V(sub)(added, V(sub)(sum, before)));
    }
#undef HOLDS_TOP
    if (room) FN(write_end)(stream, &writer, held);
    vec_prefetch_far(1, ahead + whole);
    vec_prefetch_far(1, (const char *)(ahead + C) - 1);
    for (; c < C; c += W) {
        int64_t wide = C - c < W ? C - c : W;
        V(t) a = XLOAD_N(x + c, wide), e = V(first)(wide, V(exp_near)(V(sub)(a, t)), V(set1)(0));
        V(add_others)(V(first)(wide, a, V(set1)(NAN)), t, e, &sum, &n); /* lanes past the row are no ties */
        ties += W;
        if (room) V(store_n)(room + c, e, wide);
    }
    *rest_out = (REAL)(V(total)(sum) + V(total)(lost) + ((double)ties - V(total)(n) - 1));
}

static void XFN(row_sum)(const XT *x, int64_t C, const XT *ahead, REAL *top_out, REAL *rest_out)
{
    XFN(row_sums)(x, C, ahead, top_out, rest_out, NULL, (FN(late)){NULL, NULL, 0}, 0);
}

/* The first class with that logit; the row that is to be read next is of no use here. */
static int64_t XFN(first_of)(const XT *x, int64_t C, const XT *ahead, REAL top)
{
    V(t) t = V(set1)(top);
    int64_t c = 0;
    (void)ahead;
    for (; c + 4 * W <= C; c += 4 * W) {
        V(t) n = V(set1)(0);
        for (int64_t k = 0; k < 4 * W; k += W) n = V(count_equal)(XLOAD(x + c + k), t, n);
        if (V(highest)(n) > 0) break;
    }
    while (c < C && XONE(x[c]) != top) c++;
    return c;
}

#if XDIRECT
/* Sums a row, and leaves its softmax, times the weight, to be written to the gradient while the next row is read. */
static void FN(row_early)(const REAL *x, int64_t C, const REAL *ahead, const ctc_sample *s, int64_t t, REAL *room,
                          FN(late) *late, REAL *top_out, REAL *rest_out)
{
    REAL *g = (REAL *)s->g + t * s->g_t;
    if (!room) room = g;
    FN(prefetch_edges)(g, C);
    for (int64_t k = 0; !s->stream && k < ASK_AHEAD && k < C; k += 64 / (int64_t)sizeof *g) vec_prefetch_write(g + k);
    if (s->stream) XFN(row_sums)(x, C, ahead, top_out, rest_out, room, *late, 1);
    else XFN(row_sums)(x, C, ahead, top_out, rest_out, room, *late, 0);
    REAL factor = (REAL)s->weight * (1 / (1 + *rest_out));
    if (*top_out == INFINITY) { /* the infinite ones share */
        for (int64_t c = 0; c < C; c++) g[c] = x[c] == INFINITY ? factor : 0;
        late->to = NULL;
    } else *late = (FN(late)){g, room, factor};
}
#endif

/* to[c] = factor * exp(x[c] - top). streams: `to` still holds a late row, which is written past the cache meanwhile. */
EACH_ITS_OWN void XFN(softmax)(int streams, const XT *x, int64_t C, const XT *ahead, REAL top, REAL factor, REAL *to,
                               FN(late) late)
{
    const int near = into_nearest(C * (int64_t)sizeof *x);
    V(t) t = V(set1)(top), f = V(set1)(factor), held[2] = {t, t};
    FN(writer) writer;
    int64_t c = 0;
    FN(write_begin)(&writer, late, C);
    for (; c + 2 * W <= C; c += 2 * W) {
        V(t) a = XLOAD(x + c), b = XLOAD(x + c + W);
        for (size_t k = 0; k < 2 * W * sizeof *x; k += 64) vec_prefetch_far(near, (const char *)(ahead + c) + k);
        if (streams && c < writer.end) FN(write_pair)(1, &writer, c, held);
        V(store)(to + c, V(mul)(f, V(exp_near)(V(sub)(a, t))));
        V(store)(to + c + W, V(mul)(f, V(exp_near)(V(sub)(b, t))));
    }
    vec_prefetch_far(near, ahead + c);
    vec_prefetch_far(near, (const char *)(ahead + C) - 1);
    if (streams) FN(write_end)(1, &writer, held);
    for (int64_t n = C - c; n > 0; c += W, n -= W) {
        int64_t wide = n < W ? n : W;
        V(store_n)(to + c, V(mul)(f, V(exp_near)(V(sub)(XLOAD_N(x + c, wide), t))), wide);
    }
    if (top == INFINITY) /* the infinite ones share: they have become NaN, and the others 0; x may be where `to` is */
        for (c = 0; c < C; c++) to[c] = to[c] != 0 ? factor : 0;
}
static void XFN(row_softmax)(const XT *x, int64_t C, const XT *ahead, REAL top, REAL factor, REAL *to)
{
    XFN(softmax)(0, x, C, ahead, top, factor, to, (FN(late)){NULL, NULL, 0});
}
#if XDIRECT
static void FN(row_softmax_late)(const REAL *x, int64_t C, const REAL *ahead, REAL top, REAL factor, REAL *room,
                                 FN(late) late, const REAL *g)
{
    FN(prefetch_edges)(g, C);
    XFN(softmax)(1, x, C, ahead, top, factor, room, late);
}
#endif

/* Copies a finished row to its place in the gradient. */
static void XFN(write_row)(const ctc_sample *s, int64_t t, const REAL *row)
{
    XT *g = (XT *)s->g + t * s->g_t;
    int64_t C = s->C, c = 0;
    if (s->g_c != 1) {
        for (; c < C; c++) g[c * s->g_c] = XOF(row[c]);
        return;
    }
    for (; c + W <= C; c += W) XSTORE(g + c, V(load)(row + c));
    for (; c < C; c++) g[c] = XOF(row[c]);
}

static void XFN(fill)(const ctc_sample *s, int64_t from, int64_t to, double value)
{
    XT v = XOF((REAL)value);
    for (int64_t t = from; t < to; t++) {
        XT *g = (XT *)s->g + t * s->g_t;
        if (s->g_c == 1 && value == 0) memset(g, 0, (size_t)s->C * sizeof *g);
        else
            for (int64_t c = 0; c < s->C; c++) g[c * s->g_c] = v;
    }
}

#undef XT
#undef XFN
#undef XLOAD
#undef XSTORE
#undef XLOAD_N
#undef XSTORE_N
#undef XONE
#undef XOF
#undef XDIRECT
#undef ASK_AHEAD
#undef FAR
