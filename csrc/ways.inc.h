/* Forward through the blocks of a sample, to the loss, and backward, which leaves the gradient. */

/* The gradient of a block where every class has its column in the table: the shares of labels and blank are taken out
 * of the numerators there, which uses the table up. */
static void FN(grad_dense)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1, const REAL *labels,
                           const REAL *blanks)
{
    const ctc_sample *s = w->s;
    int64_t Lp = w->Lp;
    REAL share[BLOCK], factor[BLOCK], weight = (REAL)s->weight, *table = w->table;
    for (int r = 0; r < BLOCK; r++) factor[r] = weight * w->inverse[t0 + r];
    for (int r = 0; r < BLOCK; r++) /* of rows past n anything */
        share[r] = (REAL)(1 / ((double)w->inverse[t0 + r] * ((double)labels[r] + (double)blanks[r])));
    for (int r = 0; r < BLOCK; r += W) {
        REAL *at = table + w->column[Lp] + r;
        V(store)(at, V(fnma)(V(load)(share + r), V(load)(blanks + r), V(load)(at)));
    }
    int64_t end = i1 < w->L ? i1 : w->L;
    for (int64_t v = i0 / W * W; v < end; v += W)
        for (int r = 0; r < BLOCK; r += W) {
            V(t) o[W];
            REAL *from = table + r;
            const int32_t *column = w->column + v;
            const REAL *occupied = w->occupied + r * w->o_step + v;
            for (int k = 0; k < W; k++, occupied += w->o_step) o[k] = V(load)(occupied);
            V(transpose)(o);
            if (v >= i0 && v + W <= end)
                for (int k = 0; k < W; k++)
                    V(store)(from + column[k], V(fnma)(V(load)(share + r), o[k], V(load)(from + column[k])));
            else
                for (int k = 0; k < W; k++)
                    if (v + k >= i0 && v + k < end)
                        V(store)(from + column[k], V(fnma)(V(load)(share + r), o[k], V(load)(from + column[k])));
        }
    BY_TYPE(write_block, s, t0, n, table, factor);
}

/* Prefetches what the labels and the blank are taken from. */
static void FN(prefetch_used)(const FN(work) *w, int64_t t0, int n)
{
    const ctc_sample *s = w->s;
    for (int r = 0; r < n; r++) {
        const REAL *g = (const REAL *)s->g + (t0 + r) * s->g_t;
        for (int64_t i = 0; i <= w->L; i++) vec_prefetch(g + w->classes[i] * s->g_c);
    }
}

/* Takes the shares of a class out of its softmax, in n rows. */
static inline void FN(mend)(REAL *g, int64_t g_t, int n, const REAL *scale, const REAL *share, int64_t step)
{
    for (int r = 0; r < n; r++) g[r * g_t] -= scale[r] * share[r * step];
}

/* The gradient of a block row by row: the softmax, if not written early, less the shares of labels and blank. */
static void FN(grad_sparse)(FN(work) *w, int64_t t0, int n, int64_t i0, int64_t i1, const REAL *labels,
                            const REAL *blanks)
{
    const ctc_sample *s = w->s;
    REAL weight = (REAL)s->weight, scale[BLOCK];
    int64_t end = i1 < w->L ? i1 : w->L;
    int here = s->g_c == 1 && (IS_DOUBLE || s->dtype == CTCBIND_FLOAT32), streams = here && s->stream && !w->early;
    int far = FN(rows_ahead)(s), turned = both_closer(s);
    for (int r = 0; r < n; r++) scale[r] = weight / (labels[r] + blanks[r]);
    if (w->early && s->g_c != 1) {
        REAL *g = (REAL *)s->g + t0 * s->g_t;
        for (int64_t i = i0; i < end; i++)
            FN(mend)(g + s->labels[i] * s->g_c, s->g_t, n, scale, w->occupied + i, w->o_step);
        FN(mend)(g + s->blank * s->g_c, s->g_t, n, scale, blanks, 1);
        return;
    }
    if (!w->early) FN(gather_rows)(w, t0, n);
    for (int r = 0; r < n; r++) {
        int64_t t = t0 + r, ahead = r + far < n ? far : w->split ? 0 : far - n - BLOCK;
        REAL *g = (REAL *)s->g + t * s->g_t, *row = here && !streams ? g : w->row;
        REAL top = w->top[t], factor = weight * w->inverse[t];
        const REAL *o = w->occupied + r * w->o_step;
        REAL *own = s->x_c == 1 || w->early ? NULL : FN(gathered_row)(w, t, r);
        if (turned) row = own; /* the gradient takes the logits' place there */
        if (streams) FN(row_softmax_late)(REAL_ROWS, top, factor, row, w->late, g);
        else if (!w->early) BY_TYPE_ROW(row_softmax, top, factor, row);
        for (int64_t i = i0; i < end; i++) row[s->labels[i]] -= scale[r] * o[i];
        row[s->blank] -= scale[r] * blanks[r];
        if (streams) w->late = (FN(late)){g, row, 1};
        else if (!here && !turned) BY_TYPE(write_row, s, t, row);
    }
    if (turned) {
        REAL ones[BLOCK];
        for (int r = 0; r < BLOCK; r++) ones[r] = 1;
        BY_TYPE(scatter_block, s, t0, n, w->stage, FN(gathered_step)(s->C), ones);
    }
    FN(write_late)(&w->late, s->C, s->stream);
}

#if IS_DOUBLE
#define BY_STATE(name, ...) FN(name##_d)(__VA_ARGS__)
#else
#define BY_STATE(name, ...) (w->doubles ? FN(name##_d)(__VA_ARGS__) : FN(name##_f)(__VA_ARGS__))
#endif

/* Saves or restores alpha before a block, from which the way back computes the block's rows again. */
static void FN(checkpoint)(FN(work) *w, int64_t block, int64_t i0, int64_t i1, int restore)
{
    size_t z = w->doubles ? sizeof(double) : sizeof(float), bytes = (size_t)(i1 - i0) * z;
    int64_t point = block >> (w->apart - 1), packed = 0;
    unsigned char *at = w->checkpoints + (size_t)(point * 4 * w->Lp) * z;
    unsigned char *arrays[2] = {(unsigned char *)w->state, (unsigned char *)w->exps};
    if (w->apart > 1) {
        REAL *m = w->packed + point * 2 * w->Lp;
        int16_t *above = w->above + point * 2 * w->Lp;
        double *least = w->least + point;
        if (restore) packed = *least == *least;
        else packed = !(w->grid > 0) && BY_STATE(pack, w, i0, i1, m, above, least);
        if (!packed) *least = (double)NAN;
        else if (restore) BY_STATE(unpack, w, i0, i1, m, above, *least);
    }
    for (int k = 0; k < 4; k++, at += bytes) {
        unsigned char *here = arrays[k & 1] + (size_t)((k >> 1) * w->Lp + i0) * z;
        if (!packed) FN(copy)(restore ? here : at, restore ? at : here, bytes);
    }
    if (restore) FN(empty)(w, i1, w->Lp); /* which were not reached there */
}

/* The slot that keeps the block before this one, or NULL. Alpha goes on from there, without a checkpoint. */
static const FN(slot) *FN(kept_before)(const FN(work) *w, int64_t block)
{
    int64_t k = block - w->blocks + w->keeping;
    return k > 0 && w->slots[k].kept ? w->slots + k : NULL;
}

static void FN(resume)(FN(work) *w, const FN(slot) *slot, int64_t block, int64_t i0)
{
    size_t z = w->doubles ? sizeof(double) : sizeof(float), one = (size_t)w->Lp * z, from = (size_t)i0 * z;
    const unsigned char *m = (unsigned char *)slot->rows + (BLOCK - 1) * 3 * one + from;
    const unsigned char *exps = (unsigned char *)slot->exps + (size_t)(slot->runs - 1) * 2 * one + from;
    unsigned char *to = (unsigned char *)w->states[0] + from, *to_exps = (unsigned char *)w->all_exps[0] + from;
    int64_t before, reached, end = w->ends[2 * block + 1];
    FN(cone)(w, (block - 1) * BLOCK, BLOCK, &before, &reached);
    reached = end < reached ? end : reached;
    size_t bytes = (size_t)(reached - i0) * z;
    for (int k = 0; k < 2; k++, m += one, exps += one, to += one, to_exps += one) {
        FN(copy)(to, m, bytes);
        FN(copy)(to_exps, exps, bytes);
    }
    FN(empty)(w, reached, w->Lp);
}

static void FN(set_up)(FN(work) *w, const ctc_sample *s, const ctc_extent *extent, void *scratch, int doubles)
{
    FN(lay_out)(w, extent, scratch, doubles ? sizeof(double) : sizeof(float));
    w->doubles = doubles;
    w->late = (FN(late)){NULL, NULL, 0};
    w->s = s;
    w->L = s->L;
    w->T = s->T;
    w->all = s->all;
    w->C = s->C;
    w->few = FN(few_labels)(s);
    w->Lp = (w->L + W) / W * W;
    w->blocks = (w->T + BLOCK - 1) / BLOCK;
    if (w->keeping > w->blocks) w->keeping = w->blocks;
    w->again = 0;
    for (int r = 0; r < BLOCK; r++) w->far[r] = 0;
    if (!w->dense) w->U = w->used_count = (int32_t)w->L + 1;
    /* The softmax of a row is known in the first pass, and writing it then saves its exponentials on the way back.
     * Where the row has left the cache by then, that pays if few classes are to be mended. */
    w->early = s->g && !w->dense && (s->g_c == 1 || both_closer(s)) && (IS_DOUBLE || s->dtype == CTCBIND_FLOAT32) &&
               (!s->stream || s->x_c != 1 || EARLY_CLASSES * (w->L + 1) <= w->C);
}

static int FN(feasible)(const ctc_sample *s)
{
    int64_t need = s->L;
    for (int32_t i = 1; i < s->L && !s->simple; i++) need += s->labels[i] == s->labels[i - 1];
    return s->T >= need;
}

/* The loss up to which states have to be doubles. Where one path has nearly all the probability, what others add to
 * its states falls below a float's last bit; over thousands of rows that is more than a small loss may be wrong. */
static double FN(small)(int64_t T)
{
    double small = (double)T / 8 + 2, most = (double)T / 16;
    if (most < 300) most = 300;
    return small < most ? small : most;
}

/* log2 of what references and row sums have taken out of p so far, to within a binade. */
static double FN(left_of_1)(const FN(work) *w) { return w->base / LN2 - binade_of(1 + w->more); }

/* Half of the labels that the first t rows would have if they came evenly. A path that has fewer may be the most
 * probable so far because all that is improbable is still before it, as where every row prefers the blank. */
static int64_t FN(due)(const FN(work) *w, int64_t t) { return w->L * t / (2 * w->all); }

/* log2 of what p will be if the rows to come are like the first t; a few binades too low, as only the most probable
 * state counts, of those that are not behind. *behind: a more probable one is. */
static double FN(foresee)(const FN(work) *w, int64_t t, int64_t i0, int64_t i1, int *behind)
{
    double crest = BY_STATE(crest, w, FN(due)(w, t), i0, i1);
    *behind = crest < BY_STATE(crest, w, 0, i0, i1);
    return (FN(left_of_1)(w) + crest) * (double)w->all / (double)t;
}

/* Sets a bound that p is expected not to fall below; forward runs again if it does. */
static void FN(expect)(FN(work) *w, double p)
{
    w->expected = 1.5 * p - 64;
    w->expects = w->expected > -4.0 * (double)w->L ? 1 : -1;
}

/* Whether to leave the sample before a block: the whole call is stopped. */
static int FN(stopped)(const FN(work) *w)
{
    const ctc_sample *s = w->s;
    return s->question && ctcbind_stopped_within(s->question, s->slot, BLOCK * (w->L + w->C));
}

/* How forward ended: at the last row; or where it has to begin again, in doubles, with a grid, or without a bound; or
 * where it was stopped. */
enum { FN(THROUGH), FN(SHARP), FN(GRID), FN(WORSE), FN(STOPPED) };

static int FN(forward)(FN(work) *w)
{
    int64_t i0 = 0, i1 = 0;
    int large = 0;   /* the loss is certain to be */
    int delayed = 0; /* after a quarter nothing could be foreseen */
    w->base = w->more = w->binades = 0;
    w->failed = w->strain = w->alike = w->echoes = w->cut = w->spreads = 0;
    if (w->all < ECHOING_ROWS) w->seen = NULL;
    w->stuck = 0;
    if (w->all < STICKING_ROWS || w->careful) w->emitted = NULL;
    for (int32_t k = 0; w->emitted && k < w->used_count; k++) w->emitted[k] = -1, w->sticks[k] = 0;
    if (w->seen) memset(w->seen, 0xff, ((size_t)1 << SEEN_BITS(w->all)) * sizeof *w->seen); /* no number's bits */
    FN(all_labels)(w, 0);
    FN(use)(w, 0);
    BY_STATE(link, w);
    BY_STATE(begin, w, 0);
    for (int64_t block = 0; block < w->blocks; block++) {
        int64_t t0 = block * BLOCK, slot = w->s->g ? block - w->blocks + 1 + w->keeping : 0;
        int n = w->T - t0 < BLOCK ? (int)(w->T - t0) : BLOCK;
        if (FN(stopped)(w)) return FN(STOPPED);
        int tabled = FN(take_table)(w, slot, block);
        FN(emissions)(w, block, 1);
        if (tabled) w->tabled[block] = !w->rare && !w->exactly;
        if (w->failed) continue; /* only a NaN in a later row could still change the answer */
        int wide = w->widest > FLOAT_RANGE || w->binades > SHARP_ROWS(w->L) * (double)(t0 + n);
        int alike = w->alike > ALIKE_ROWS(w->T) || w->echoes > ECHO_ROWS(w->T, w->few) ||
                    (int64_t)w->stuck * w->all > (int64_t)STUCK_ROWS * w->T;
        if (!IS_DOUBLE && !w->careful && alike) {
            w->careful = 1;
            return FN(SHARP);
        }
        if (!w->doubles && wide) return FN(SHARP);
        if (FN(wants_grid)(w)) {
            FN(set_grid)(w);
            if (w->grid > 0) return FN(GRID);
        }
        FN(all_labels)(w, block + 1);
        FN(cone)(w, t0, n, &i0, &i1);
        if (i0 >= i1) return FN(WORSE); /* no label that was not left out can reach the end */
        BY_STATE(spread, w, t0, i0, i1);
        if (w->s->g && (block & (w->apart - 1)) == 0 && !FN(kept_before)(w, block)) FN(checkpoint)(w, block, i0, i1, 0);
        BY_STATE(alpha_block, w, t0, n, i0, i1, slot > 0);
        if (!w->doubles && w->strain > SHARP_STRAIN(w->L) && 4 * block < w->blocks) return FN(SHARP);
        int first = block == 0 && w->blocks > 1 && !w->doubles, quarter = block == w->blocks / 4 && w->blocks > 2;
        int half = block == w->blocks / 2 && delayed, open = !large && (!w->doubles || w->expects == 0), behind;
        if (first || (open && (quarter || half))) {
            double p = FN(foresee)(w, t0 + n, i0, i1, &behind), small = -FN(small)(w->all) / LN2;
            delayed = quarter && behind;
            if (!delayed && !first && w->expects == 0) FN(expect)(w, p);
            if (!delayed && !w->doubles && p > (first ? small / 2 : small)) return FN(SHARP);
            large = !delayed && p < 4 * small && p < -8.0 * (double)w->L;
        }
        if (w->expects > 0 && block + 1 < w->blocks && !BY_STATE(trim, w, block + 1, FN(left_of_1)(w), i0, i1))
            return FN(WORSE);
    }
    FN(settle)(w);
    return FN(THROUGH);
}

/* In place of emissions, for a block whose table was kept: none of its rows is rare. */
static void FN(no_flags)(FN(work) *w)
{
    memset(w->slot->flags, 0, sizeof w->slot->flags);
    w->slot->unusual = w->rare = w->exactly = 0;
}

/* Computes alpha of some labels of a block again, from the checkpoint at or before it. Of two blocks from one
 * checkpoint the first stays in the spare slot, for its turn. */
static void FN(again)(FN(work) *w, int64_t block, int64_t from, int64_t to)
{
    int64_t first = block - (block & (w->apart - 1));
    FN(use)(w, 0);
    w->again = 1;
    for (int64_t k = first; k <= block; k++) {
        int64_t t0 = k * BLOCK, i0 = from, i1 = to;
        int n = w->T - t0 < BLOCK ? (int)(w->T - t0) : BLOCK;
        const FN(slot) *before = k == first ? FN(kept_before)(w, k) : NULL;
        if (before) FN(resume)(w, before, k, i0);
        else if (k == first) {
            FN(cone)(w, t0, n, &i0, &i1);
            FN(checkpoint)(w, k, i0, i1, 1);
            i0 = from, i1 = to;
        }
        if (k < block) {
            FN(cone_back)(w, t0, n, BLOCK, from, to, &i0, &i1);
            w->beside = k;
        }
        if (FN(take_table)(w, k < block ? w->spare : 0, k) && w->tabled[k]) FN(no_flags)(w);
        else FN(emissions)(w, k, 0);
        BY_STATE(spread, w, t0, i0, i1);
        BY_STATE(alpha_block, w, t0, n, i0, i1, 1);
        if (k < block) FN(empty)(w, w->ends[2 * k + 3], i1);
    }
    FN(use)(w, 1);
}

/* Of a split sample: the occupancies of a block go where its table was. */
static void FN(occupied_of)(FN(work) *w, int64_t t0)
{
    w->occupied = w->tables + t0 / BLOCK * w->table_size;
    w->o_step = w->Lp;
}

/* Labels from i0 on come within reach of beta. */
static void FN(reach_down)(FN(work) *w, int64_t i0)
{
    FN(empty)(w, i0, w->bottom);
    w->bottom = i0;
}

/* A block of few states that beta has come through. Its gradient is made after the next block's beta: the two overlap
 * in the processor, as rows of so few states spend their time waiting for each other. */
typedef struct {
    FN(slot) *slot; /* NULL: there is none */
    REAL *table, *occupied;
    int64_t t0, i0, i1;
    int n;
} FN(passed);

static void FN(grad_passed)(FN(work) *w, FN(passed) *p)
{
    REAL labels[2 * BLOCK];
    if (!p->slot) return;
    w->slot = p->slot;
    w->table = p->table;
    w->occupied = p->occupied;
    BY_STATE(sum_lanes, w, p->i0, labels, labels + BLOCK);
    FN(grad_dense)(w, p->t0, p->n, p->i0, p->i1, labels, labels + BLOCK);
    p->slot = NULL;
}

/* Backward, from the last block to the first. other: the half after this one, or NULL. 0 where it was stopped. */
static int FN(backward)(FN(work) *w, const FN(work) *other)
{
    FN(use)(w, 1);
    BY_STATE(begin, w, w->L);
    if (other) BY_STATE(turn, w, other);
    w->beside = -1;
    w->from = w->bottom = 0;
    w->to = w->Lp;
    FN(passed) waiting = {NULL, NULL, NULL, 0, 0, 0, 0};
    int few = w->dense && !w->split && w->Lp <= W, stopped = 0;
    for (int64_t block = w->blocks - 1; block >= 0 && !(stopped = FN(stopped)(w)); block--) {
        int64_t t0 = block * BLOCK, slot = block - w->blocks + 1 + w->keeping, i0, i1;
        int n = w->T - t0 < BLOCK ? (int)(w->T - t0) : BLOCK;
        REAL here[2 * BLOCK], *labels = w->split ? w->totals + 2 * t0 : here;
        FN(cone_back)(w, t0, n, n, w->from, w->to, &i0, &i1);
        if (w->split) FN(occupied_of)(w, t0);
        FN(take_slot)(w, slot);
        if (slot <= 0 || !w->slot->kept) {
            if (block == w->beside) FN(take_slot)(w, w->spare);
            else FN(again)(w, block, i0, i1);
        }
        FN(reach_down)(w, i0);
        if (w->dense) FN(prefetch_rows)(1, w, w->s->g, w->s->g_t, w->s->g_c, t0);
        else if (w->early && !w->split) FN(prefetch_used)(w, t0, n);
        BY_STATE(beta_block, w, t0, n, i0, i1);
        if (few) {
            FN(passed) now = {w->slot, w->table, w->occupied, t0, i0, i1, n};
            int kept = slot > 0 && w->slot == w->slots + slot;
            FN(grad_passed)(w, &waiting);
            waiting = now;
            if (!kept) FN(grad_passed)(w, &waiting); /* its slot is the next block's */
            w->from = i0, w->to = i1;
            continue;
        }
        BY_STATE(sum_lanes, w, i0, labels, labels + BLOCK);
        BY_STATE(narrow, w, i0, i1);
        if (w->split) w->reached[2 * block] = (int32_t)i0, w->reached[2 * block + 1] = (int32_t)i1;
        if (w->dense) FN(grad_dense)(w, t0, n, i0, i1, labels, labels + BLOCK);
        else if (!w->split) FN(grad_sparse)(w, t0, n, i0, i1, labels, labels + BLOCK);
        else atomic_store_explicit(w->s->back, (int)(w->blocks - block), memory_order_release);
    }
    FN(grad_passed)(w, &waiting);
    if (w->s->stream) vec_fence();
    return !stopped;
}
