/* The recursions where logits are so large that their binades do not add up exactly in a double (from 1e12 or so on).
 *
 * A state is ln of its probability in two parts, hi + lo: hi in whole steps of w->grid, so that its sums are exact, lo
 * the rest. A path that must pay 1e30 keeps what it pays beside that, and so do two paths that both pay it. (A third
 * scale between the two, or a double's own digits at 1e30, would push the smallest out of lo.) State by state and slow;
 * such logits are rare. lo stands where others have mantissas, hi where they have exponents; lo is
 * -infinite where there is no probability. */

typedef struct {
    double hi, lo;
} FN(pair);

static inline FN(pair) FN(at)(const double *hi, const double *lo, int64_t i) { return (FN(pair)){hi[i], lo[i]}; }

static inline double FN(apart)(FN(pair) a, FN(pair) b) { return (a.hi - b.hi) + (a.lo - b.lo); }

/* ln of a sum of probabilities */
static FN(pair) FN(join)(const FN(pair) *terms, int count)
{
    FN(pair) top = {0, -INFINITY};
    double sum = 0;
    for (int k = 0; k < count; k++)
        if (terms[k].lo > -INFINITY && (top.lo == -INFINITY || FN(apart)(terms[k], top) > 0)) top = terms[k];
    if (top.lo == -INFINITY) return top;
    for (int k = 0; k < count; k++)
        if (terms[k].lo > -INFINITY) sum += exp(FN(apart)(terms[k], top));
    top.lo += log(sum);
    return top;
}

/* ln of a product; a loss beyond a double's range is that of no path */
static inline FN(pair) FN(times)(FN(pair) a, FN(pair) b)
{
    FN(pair) both = {a.hi + b.hi, a.lo + b.lo};
    if (!(both.hi > -INFINITY && both.lo > -INFINITY)) both = (FN(pair)){0, -INFINITY};
    return both;
}

/* What the used classes emit in row t, by position: hi to w->rare_binades, lo to w->rare_e. */
static void FN(far_emissions)(FN(work) *w, int64_t t, int r)
{
    double reference = w->slot->reference[r], *hi = w->rare_binades, *lo = w->rare_e;
    FN(against)(w, t, reference, lo);
    FN(subtraction_lost)(w, reference, lo, hi);
    for (int32_t k = 0; k < w->used_count; k++) {
        double d = lo[k], steps = d > -INFINITY ? rint(d / w->grid) * w->grid : 0;
        lo[k] = (d - steps) + hi[k];
        hi[k] = steps;
    }
}

static void FN(far_begin)(FN(work) *w, int64_t first_blank)
{
    BY_STATE(begin, w, first_blank); /* for w->skip */
    for (int64_t i = 0; i < 2 * w->Lp; i++) w->state[i] = -INFINITY;
    w->state[w->Lp + first_blank] = 0;
}

static void FN(far_alpha)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1, int keep)
{
    int64_t Lp = w->Lp, L = w->L;
    const double *skip = w->skip + FN(PAD), *hi = w->exps, *lo = w->state;
    FN(slot) *slot = w->slot;
    for (int r = 0; r < n; r++) {
        double *to_hi = slot->exps + (keep ? r : r & 1) * 2 * Lp, *to_lo = slot->rows + (keep ? r : r & 1) * 2 * Lp;
        FN(far_emissions)(w, t0 + r, r);
        FN(pair) blank = FN(at)(w->rare_binades, w->rare_e, w->position[L]), none = {0, -INFINITY};
        for (int64_t i = i0; i < i1; i++) {
            FN(pair) l = FN(at)(hi, lo, i), b = FN(at)(hi, lo, Lp + i), up = i > i0 ? FN(at)(hi, lo, i - 1) : none;
            FN(pair) to_label[3] = {b, skip[i] == 0 ? up : none, w->s->simple ? none : l}, to_blank[2] = {b, up};
            FN(pair) label = none;
            if (i < L) label = FN(times)(FN(join)(to_label, 3), FN(at)(w->rare_binades, w->rare_e, w->position[i]));
            b = i <= L ? FN(times)(FN(join)(to_blank, 2), blank) : none;
            to_hi[i] = label.hi, to_lo[i] = label.lo;
            to_hi[Lp + i] = b.hi, to_lo[Lp + i] = b.lo;
        }
        hi = to_hi, lo = to_lo;
    }
    for (int k = 0; k < 2; k++) {
        memcpy(w->exps + k * Lp + i0, hi + k * Lp + i0, (size_t)(i1 - i0) * sizeof *hi);
        memcpy(w->state + k * Lp + i0, lo + k * Lp + i0, (size_t)(i1 - i0) * sizeof *lo);
    }
}

/* As the others, w->state and w->exps hold emission * beta of the row after, and the occupancies are left. Those of a
 * row are relative to its largest, as all are to their sum later. */
static void FN(far_beta)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1)
{
    int64_t Lp = w->Lp, L = w->L;
    const double *skip = w->skip + FN(PAD);
    double *hi = w->exps, *lo = w->state;
    for (int r = n - 1; r >= 0; r--) {
        const double *a_hi = w->slot->exps + r * 2 * Lp, *a_lo = w->slot->rows + r * 2 * Lp;
        FN(pair) none = {0, -INFINITY}, top = none, blank;
        double labels = 0, blanks = 0;
        for (int64_t i = i0; i < i1; i++) { /* upwards: a state needs those after it as they were */
            FN(pair) l = FN(at)(hi, lo, i), b = FN(at)(hi, lo, Lp + i), next = none, down = none;
            if (i + 1 < i1) next = FN(at)(hi, lo, i + 1), down = FN(at)(hi, lo, Lp + i + 1);
            FN(pair) of_label[3] = {down, skip[i + 1] == 0 ? next : none, w->s->simple ? none : l}, of_blank[2] = {b, l};
            l = i < L ? FN(join)(of_label, 3) : none;
            b = i <= L ? FN(join)(of_blank, 2) : none;
            FN(pair) both[2] = {FN(times)(l, FN(at)(a_hi, a_lo, i)), FN(times)(b, FN(at)(a_hi, a_lo, Lp + i))};
            for (int k = 0; k < 2; k++)
                if (both[k].lo > -INFINITY && (top.lo == -INFINITY || FN(apart)(both[k], top) > 0)) top = both[k];
            hi[i] = l.hi, lo[i] = l.lo;
            hi[Lp + i] = b.hi, lo[Lp + i] = b.lo;
        }
        FN(far_emissions)(w, t0 + r, r);
        blank = FN(at)(w->rare_binades, w->rare_e, w->position[L]);
        for (int64_t i = i0; i < i1; i++) {
            FN(pair) l = FN(at)(hi, lo, i), b = FN(at)(hi, lo, Lp + i);
            FN(pair) label = FN(times)(l, FN(at)(a_hi, a_lo, i)), other = FN(times)(b, FN(at)(a_hi, a_lo, Lp + i));
            double o = label.lo > -INFINITY ? exp(FN(apart)(label, top)) : 0;
            w->occupied[r * Lp + i] = (REAL)o;
            labels += o;
            if (other.lo > -INFINITY) blanks += exp(FN(apart)(other, top));
            if (i < L) l = FN(times)(l, FN(at)(w->rare_binades, w->rare_e, w->position[i]));
            b = FN(times)(b, blank);
            hi[i] = l.hi, lo[i] = l.lo;
            hi[Lp + i] = b.hi, lo[Lp + i] = b.lo;
        }
        memset(w->sums + r * VD_LANES, 0, VD_LANES * sizeof(double));
        memset(w->sums + (BLOCK + r) * VD_LANES, 0, VD_LANES * sizeof(double));
        w->sums[r * VD_LANES] = labels;
        w->sums[(BLOCK + r) * VD_LANES] = blanks;
    }
}

static int FN(far_finish)(FN(work) *w)
{
    FN(pair) ends[2] = {FN(at)(w->exps, w->state, w->Lp + w->L), {0, -INFINITY}};
    if (w->L) ends[1] = FN(at)(w->exps, w->state, w->L - 1);
    FN(pair) p = FN(join)(ends, 2);
    w->ln_p = p.hi + p.lo;
    return p.lo > -INFINITY;
}
