/* What touches the logits and the gradient in their own type. XT, XLOAD, XSTORE... are undefined at the end. */

static inline V(t) XFN(load_part)(const XT *p, int64_t n)
{
#if XDIRECT
    return V(load_n)(p, n);
#else
    XT part[W] = {0};
    if (n > 0) memcpy(part, p, (size_t)n * sizeof *p);
    return XLOAD(part);
#endif
}
static inline void XFN(store_part)(XT *p, V(t) a, int64_t n)
{
#if XDIRECT
    V(store_n)(p, a, n);
#else
    XT part[W];
    XSTORE(part, a);
    if (n > 0) memcpy(p, part, (size_t)n * sizeof *p);
#endif
}

/* A row with its classes side by side: where it stands, or gathered into room. */
static inline const XT *XFN(row)(const ctc_sample *s, int64_t t, XT *room)
{
    const XT *x = (const XT *)s->x + t * s->x_t;
    if (s->x_c == 1) return x;
    for (int64_t c = 0; c < s->C; c++) room[c] = x[c * s->x_c];
    return room;
}

/* to[k * step] = the logit of the k-th of some classes */
static void XFN(gather)(const ctc_sample *s, int64_t t, const int32_t *classes, int64_t count, REAL *to, int64_t step)
{
    const XT *x = (const XT *)s->x + t * s->x_t;
    for (int64_t k = 0; k < count; k++) to[k * step] = XONE(x[classes[k] * s->x_c]);
}

/* table[c][r] = logit of class c at row first + r; rows past count repeat the last. */
static void XFN(read_block)(const ctc_sample *s, int64_t first, int count, void *stage, REAL *table)
{
    const XT *rows[BLOCK];
    int64_t C = s->C;
    for (int r = 0; r < BLOCK; r++) {
        if (r < count) rows[r] = XFN(row)(s, first + r, stage ? (XT *)stage + r * C : NULL);
        else rows[r] = rows[count - 1];
    }
    for (int64_t c = 0; c < C; c += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) v[W];
            int64_t wide = C - c < W ? C - c : W;
            if (wide == W)
                for (int k = 0; k < W; k++) v[k] = XLOAD(rows[r + k] + c);
            else
                for (int k = 0; k < W; k++) v[k] = XFN(load_part)(rows[r + k] + c, wide);
            V(transpose)(v);
            REAL *to = table + c * BLOCK + r; /* which has room for whole vectors of classes */
            for (int k = 0; k < W; k++) V(store)(to + k * BLOCK, v[k]);
        }
}

static void XFN(write_block)(const ctc_sample *s, int64_t first, int count, const REAL *table)
{
    int64_t C = s->C, step = s->g_t;
    XT *g = (XT *)s->g + first * step;
    if (s->g_c != 1) {
        for (int r = 0; r < count; r++)
            for (int64_t c = 0; c < C; c++) g[r * step + c * s->g_c] = XOF(table[c * BLOCK + r]);
        return;
    }
    for (int64_t c = 0; c < C; c += W) {
        int64_t wide = C - c < W ? C - c : W;
        for (int r = 0; r < count; r += W) {
            V(t) v[W];
            for (int k = 0; k < W; k++) v[k] = V(load)(table + (k < wide ? c + k : c) * BLOCK + r);
            V(transpose)(v);
            int rows = count - r < W ? count - r : W;
            XT *to = g + r * step + c;
            if (rows == W && wide == W)
                for (int k = 0; k < W; k++) XSTORE(to + k * step, v[k]);
            else if (rows == W)
                for (int k = 0; k < W; k++) XFN(store_part)(to + k * step, v[k], wide);
            else
                for (int k = 0; k < rows; k++) XFN(store_part)(to + k * step, v[k], wide);
        }
    }
}

/* The largest logit of a row and the sum of exp(logit - largest) without the one that gives 1: beside that, small
 * terms would be lost. ahead: the row that will be read next, which the hardware cannot guess. The exponentials are
 * kept in `keep`, where that is given. */
static inline void XFN(row_sums)(const XT *x, int64_t C, const XT *ahead, REAL *top_out, REAL *rest_out, REAL *keep)
{
    enum { CHUNK = 2048 }; /* terms in one sum of sums */
    int64_t whole = C / (2 * W) * (2 * W), c;
    V(t) m0 = V(set1)(-INFINITY), m1 = m0;
    for (c = 0; c < whole; c += 2 * W) {
        m0 = V(max)(XLOAD(x + c), m0);
        m1 = V(max)(XLOAD(x + c + W), m1);
    }
    REAL lanes[W], top = -INFINITY, rest = 0, count = (REAL)whole;
    V(store)(lanes, V(max)(m0, m1));
    for (int k = 0; k < W; k++) top = lanes[k] > top ? lanes[k] : top;
    for (; c < C; c++) {
        REAL v = XONE(x[c]);
        top = v > top ? v : top;
    }
    V(t) t = V(set1)(top);
    for (c = 0; c < whole;) {
        int64_t end = whole - c < CHUNK ? whole : c + CHUNK;
        V(t) s0 = V(set1)(0), s1 = s0, n0 = s0, n1 = s0;
        for (; c < end; c += 2 * W) {
            V(t) a = XLOAD(x + c), b = XLOAD(x + c + W);
            for (size_t k = 0; k < 2 * W * sizeof *x; k += 64) vec_prefetch((const char *)(ahead + c) + k);
            V(t) e = V(exp_near)(V(sub)(a, t)), f = V(exp_near)(V(sub)(b, t));
            V(add_others)(a, t, e, &s0, &n0);
            V(add_others)(b, t, f, &s1, &n1);
            if (keep) {
                V(store)(keep + c, e);
                V(store)(keep + c + W, f);
            }
        }
        V(store)(lanes, V(add)(s0, s1));
        for (int k = 0; k < W; k++) rest += lanes[k];
        V(store)(lanes, V(add)(n0, n1));
        for (int k = 0; k < W; k++) count -= lanes[k];
    }
    for (; c < C; c += W) {
        REAL part[W], e[W];
        for (int k = 0; k < W; k++) part[k] = c + k < C ? XONE(x[c + k]) : -INFINITY;
        V(store)(e, V(exp_near)(V(sub)(V(load)(part), t)));
        for (int k = 0; k < W && c + k < C; k++) {
            if (part[k] == top) count++;
            else rest += e[k];
            if (keep) keep[c + k] = e[k];
        }
    }
    *top_out = top;
    *rest_out = rest + (count - 1);
}

static void XFN(row_sum)(const XT *x, int64_t C, const XT *ahead, REAL *top_out, REAL *rest_out)
{
    XFN(row_sums)(x, C, ahead, top_out, rest_out, NULL);
}

#if XDIRECT
/* The softmax of a row, times the weight, goes straight to the gradient while the row is at hand. */
static void XFN(row_early)(const XT *x, int64_t C, const XT *ahead, const ctc_sample *s, int64_t t, REAL *room,
                           REAL *top_out, REAL *rest_out)
{
    REAL *g = (REAL *)s->g + t * s->g_t, *e = s->stream ? room : g;
    XFN(row_sums)(x, C, ahead, top_out, rest_out, e);
    REAL factor = (REAL)s->weight * (1 / (1 + *rest_out));
    V(t) f = V(set1)(factor);
    int64_t c = 0;
    if (*top_out == INFINITY) { /* the infinite ones share */
        for (; c < C; c++) g[c] = XONE(x[c]) == INFINITY ? factor : 0;
        return;
    }
    if (s->stream) {
        for (; c < C && (uintptr_t)(g + c) % (W * sizeof(REAL)); c++) g[c] = factor * e[c];
        for (; c + W <= C; c += W) V(stream)(g + c, V(mul)(f, V(load)(e + c)));
    } else
        for (; c + W <= C; c += W) V(store)(g + c, V(mul)(f, V(load)(e + c)));
    for (; c < C; c++) g[c] = factor * e[c];
}
#endif

/* to[c] = factor * exp(x[c] - top) */
static void XFN(row_softmax)(const XT *x, int64_t C, const XT *ahead, REAL top, REAL factor, REAL *to)
{
    V(t) t = V(set1)(top), f = V(set1)(factor);
    int64_t c = 0;
    if (top == INFINITY) /* the infinite ones share */
        for (; c < C; c++) to[c] = XONE(x[c]) == INFINITY ? factor : 0;
    for (; c + W <= C; c += W) {
        vec_prefetch(ahead + c);
        V(store)(to + c, V(mul)(f, V(exp_near)(V(sub)(XLOAD(x + c), t))));
    }
    if (c < C) V(store_n)(to + c, V(mul)(f, V(exp_near)(V(sub)(XFN(load_part)(x + c, C - c), t))), C - c);
}

/* Moves a finished row of the gradient to its place. */
static void XFN(write_row)(const ctc_sample *s, int64_t t, const REAL *row)
{
    XT *g = (XT *)s->g + t * s->g_t;
    int64_t C = s->C, c = 0;
    if (s->g_c != 1) {
        for (; c < C; c++) g[c * s->g_c] = XOF(row[c]);
        return;
    }
#if XDIRECT
    if (s->stream) {
        for (; c < C && (uintptr_t)(g + c) % (W * sizeof(REAL)); c++) g[c] = row[c];
        for (; c + W <= C; c += W) V(stream)(g + c, V(load)(row + c));
    }
#endif
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
#undef XONE
#undef XOF
#undef XDIRECT
