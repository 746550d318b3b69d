/* Rows whose emissions may not stand in the table: their references, and what they emit, in doubles; and the grid that
 * very large logits are counted on. */

/* The used logits of a row, less a reference. Those at +inf share all the probability. lost: what each difference has
 * rounded away, or NULL; between paths that pay as much, it decides. */
static void FN(against)(const FN(work) *w, int64_t t, double reference, double *d, double *lost)
{
    const ctc_sample *s = w->s;
    REAL *x = w->gathered;
    BY_TYPE(gather, s, t, w->classes, w->used_count, x, 1);
    if (w->top[t] == INFINITY)
        for (int32_t k = 0; k < w->used_count; k++) x[k] = x[k] == INFINITY ? 0 : -INFINITY;
    for (int32_t k = 0; k < w->used_count; k++) d[k] = (double)x[k] - reference;
    for (int32_t k = 0; lost && k < w->used_count; k++) {
        double less = d[k] - (double)x[k], rounded = ((double)x[k] - (d[k] - less)) - (reference + less);
        lost[k] = rounded == rounded ? rounded : 0; /* of infinite ones nothing */
    }
}

/* Sums of exponents must be exact in a double, or alpha and beta would not meet. Where logits are so large that their
 * binades do not add up exactly, those of WIDE rows are rounded to steps of a grid. Other rows add their binades to the
 * same exponents, up to hundreds each, so a binade of the grid must count for as much as theirs. Only where logits are
 * past 2^900 / 4T does it stand for 2^200 of them, lest sums of the largest doubles fall below DEAD. */
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
    w->grid = bits < GRID_BITS ? 0 : exp2(fmax(ceil(bits) - 52, 0)) * w->shrink;
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

/* exp(d + *binades) = returned * 2^*binades, those in whole steps of the grid. */
static double FN(grid_exp)(const FN(work) *w, double d, double *binades)
{
    double steps = rint(d * (LOG2E * w->shrink) / w->grid) * w->grid, whole = steps / w->shrink;
    double rest = fma(-whole, LN2, d) - whole * 0x1.abc9e3b39803fp-56; /* the digits of ln 2 that its double lacks */
    rest += *binades;
    if (steps == 0 && d < -600) steps = -w->grid; /* far below, if less than a step */
    *binades = steps;
    return fabs(rest) < 600 ? exp(rest) : 1;
}

/* Whether a row's logits are those of the row before. */
static int FN(same_row)(const FN(work) *w, int64_t t)
{
    const ctc_sample *s = w->s;
    int64_t size = (int64_t)ctcbind_bytes_of(s->dtype);
    const char *row = (const char *)s->x + t * s->x_t * size;
    return s->x_c == 1 && memcmp(row, row - s->x_t * size, (size_t)(s->C * size)) == 0;
}

/* exp(d + *lost) = returned * 2^n, with the digits of doubles however large d is; lost: NULL, or what d lacks. */
static inline vd_t FN(exact_exp)(vd_t d, const vd_t *lost, vd_t *n)
{
    vd_t b = vd_mul(d, vd_set1(LOG2E)), minus = vd_sub(vd_set1(0), b);
    *n = vd_rint(b);
    /* what the product has rounded away, and the digits of log2(e) that its double lacks */
    vd_t low = vd_fma(d, vd_set1(2.0355273740931033e-17), vd_fused(d, vd_set1(LOG2E), minus));
    if (lost) low = vd_fma(*lost, vd_set1(LOG2E), low);
    return vd_exp_series(vd_mul(vd_add(vd_sub(b, *n), low), vd_set1(LN2)));
}

/* What the used classes emit in a rare row, to w->rare_e by position. Returns the whole binades that emissions of a
 * WIDE row leave out. */
static const double *FN(rare_emissions)(FN(work) *w, int64_t t, int r)
{
    double *e = w->rare_e, *binades = w->rare_binades;
    int wide = w->slot->flags[r] & FN(ROW_WIDE);
    vd_t least = vd_set1(wide ? -INFINITY : -1e6); /* what is at -inf becomes 0 by itself where rows are not wide */
    FN(against)(w, t, w->slot->reference[r], e, wide ? binades : NULL);
    if (wide && w->grid > 0)
        for (int32_t k = 0; k < w->used_count; k++)
            if (e[k] > -INFINITY) e[k] = FN(grid_exp)(w, e[k], &binades[k]);
            else e[k] = binades[k] = 0; /* -inf, or so far below that the difference overflows */
    else
        for (int32_t k = 0; k < w->used_count; k += VD_LANES) {
            vd_t n, lost = vd_load(binades + k);
            vd_t part = FN(exact_exp)(vd_max(vd_load(e + k), least), wide ? &lost : NULL, &n);
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
        FN(against)(w, t, 0, d, NULL);
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
