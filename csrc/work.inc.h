/* The scratch of one sample, and the numbers that depend on the element type. */

#define FLOAT_RANGE 96 /* binades that the emissions of a row may spread over and still be exact as floats */
#define TABLE_RANGE (IS_DOUBLE ? 900 : FLOAT_RANGE)
/* Floats are faster than doubles while long runs of rows share exponents. More binades a row on average, or more runs
 * than three a block for a while, and a sample goes on in doubles. Short runs cost less where registers hold all states,
 * and are to be expected until the first path has come to the end of the labels. */
#define SHARP_ROWS(L) ((L) < 4 * VF_LANES ? 16 : 10)
#define SHARP_STRAIN(L) (10 + (L) / 3)
/* In rows alike exponentials and sums are rounded the same way again and again, as floats: of so many, or of twice as
 * many in halves, the gradient becomes wrong by some 1e-6. */
#define ALIKE_ROWS(T) (16 + (T) / 1024)
/* The same of rows that come again, in whatever order; of every other block, in a table of so many of their sums. Fewer
 * rows than the last number, of a sample whole, do not add up. */
#define ECHO_ROWS(T, few) (8 + (T) / ((few) ? 32 : 512))
#define SEEN_BITS 10
#define ECHOING_ROWS 200
/* Labels that are few enough to be taken one by one, each in all rows of a block. */
#define FEW_LABELS 24
/* The loss is a difference, of what the row sums take out of p and what paths come to: of row sums that take out so
 * many times the loss floats have too few digits; sooner where the sums are of other exponentials than the emissions. */
#define SUMS_TO_LOSS(dense) ((dense) ? 16 : 8)
/* From so many rows on differences of logits are taken exactly, whatever their size. */
#define MANY_ROWS 400
/* The reference of a row is its largest logit unless that beats every used class by more nats than this. */
#define REFERENCE_SLACK 8

#define RANGE_CEILING 4000 /* more than any run may spread over */

/* Labels are left out that together have less of the probability than this at a row, twice a block: over 20000 rows less
 * than the last place of 1. */
#define NEGLIGIBLE (IS_DOUBLE ? 0x1p-66 : 0x1p-36)

/* Classes for one that is used, from which the softmax is written early although its row has left the cache when the
 * used ones are known. */
#define EARLY_CLASSES 48

enum { FN(ROW_ZERO) = 1, FN(ROW_WIDE) = 2 };

/* Whether a label may take part of so many rows that what its own logits round there adds up, whatever others do. */
static inline int FN(few_labels)(const ctc_sample *s) { return !IS_DOUBLE && 64 * ((int64_t)s->L + 1) <= s->all; }

/* How alpha goes on from a row: so many rows in one run, whose states share one exponent (flat) or not. */
typedef struct {
    double unit; /* that exponent, or by how much the states' own are less than when the run begins */
    int32_t rows, flat;
} FN(choice);

/* What the way back needs of one block of rows. One such slot is scratch, filled again for every block; others keep
 * what the way forward has put there, where memory allows. Arrays declared double hold states: float or double. */
typedef struct {
    double *rows; /* [BLOCK][3][Lp]: alpha of the labels, of the blanks, and what the labels emit */
    double *exps; /* those of alpha, [most_runs][2][Lp] */
    double *eb;   /* [BLOCK] what the blank emits */
    REAL *table;           /* [U + 1][BLOCK] */
    REAL *range;           /* [BLOCK] binades that the emissions of a row spread over */
    double reference[BLOCK];
    REAL before[BLOCK / 4 + 1]; /* sums of ranges, of the rows before each fourth; none counted above RANGE_CEILING */
    int32_t flat[BLOCK];    /* by run: its states share one exponent */
    int32_t flags[BLOCK], first_row[BLOCK + 1], runs; /* the second by run, then where the last one ends */
    int32_t unusual;                                      /* any of the flags is set */
    int32_t most_runs, kept;                              /* the first is a power of two */
} FN(slot);

typedef struct {
    const ctc_sample *s;
    int64_t L, Lp, C, U, T, blocks;
    int64_t all; /* rows of the sample, of which these may be half */
    int32_t dense, failed;
    int32_t early;   /* the softmax is in the gradient from the first pass on, and only the used classes change */
    int32_t doubles; /* the states are doubles, not floats */
    int32_t alone;   /* rows to go before another try at a run */
    int32_t strain;  /* how many more runs alpha has lately taken than three a block */
    int32_t alike;   /* rows so far that are nearly as the one before, */
    int32_t echoes;  /* and of every other block, as any earlier one: */
    int32_t *seen;   /* the bits of their sums; NULL where they are not counted; */
    int32_t few;     /* and of keys of what labels and blank have, where labels are few */
    int32_t careful; /* there are many of those, or 2, the loss is a small difference: what classes emit is computed in
                      * doubles, and then row sums as well */
    double base;     /* what the references and the row sums have taken out of ln p so far, but for the last of these: */
    double more;     /* the product of those, less 1, which is as exact near 0 as they are; of 16 rows it is below 2^496 */
    double binades, widest; /* the sum of the rows' ranges so far, counted as in `before`, and this block's largest */
    double grid;     /* step of the exponents of WIDE rows, 0 for single binades, less than 0: not known yet */
    double shrink;   /* binades to a nat of theirs */
    double most;     /* the largest logit of a used class, or the limit below it */
    double limit;    /* classes so many nats below their row's reference are on no path that matters */
    double log2_p, ln_p; /* the first in whole binades, as the exponents count them; ln_p less base */
    double expected; /* log2 of what p probably is no less than, */
    int32_t expects; /* once that was to be foreseen; less than 0 where it is not to be */
    int32_t cut;     /* paths were left out that are less */
    int32_t *ends;   /* [2] by block, on the way forward: the labels that a path has reached before it, and past them */
    /* per time step */
    REAL *top, *inverse;
    REAL *rests, *bounds, *totals; /* of a split sample: [T], [3][T] used logits' least, largest and keys, by block, [2][T] */
    int32_t *reached;              /* and [2] by block: the labels that the way back went through */
    int32_t split;
    int32_t helps; /* one of the threads that share a sample: what they share is written by none */
    /* of the block at hand */
    int32_t rare;           /* bit r: the table does not tell what row r emits */
    FN(slot) *slot, *slots; /* the one at hand; the scratch slot and those that keep */
    int64_t keeping;        /* slots that keep: for the last blocks, which are hot when the way back begins */
    int64_t spare;          /* the slot after those, */
    int64_t beside;         /* and the block that it holds */
    int64_t apart;          /* blocks from checkpoint to checkpoint: 1 or 2 */
    REAL *table;            /* [U][BLOCK]: numerators of the softmax */
    REAL *tables;           /* those of each of the first blocks, where memory allows; else NULL. Of a split sample all, */
    int64_t table_size;     /* and each block's occupancies, [BLOCK][Lp], take the place of its table */
    unsigned char *tabled;  /* by block: all that its rows emit is in its table */
    REAL *range;
    double *eb;
    void *stage;
    REAL *row;                          /* C values; NULL where they are written to the gradient at once */
    FN(late) late;                      /* what of them is still to be written */
    int32_t *used, *classes, used_count; /* where columns of the table begin that states emit from, and their classes */
    int32_t *column;                     /* [Lp + 1] where each label's begins, that of zeros past them, the blank's */
    int32_t *position;                   /* of each label, the blank's last, among the used */
    REAL *gathered;                     /* by position, of one row: logits, emissions and the binades beside them */
    double *rare_e, *rare_binades;
    /* recursion */
    double *skip;                    /* 0 where label i - 1 may go to label i directly, very low elsewhere */
    double *passes;                  /* [Lp] the same as factors 1 and 0 */
    double *state, *states[2];       /* [2][Lp] mantissas of alpha and of beta, and the one at hand */
    double *exps, *all_exps[2];      /* their exponents */
    double *start, *aligned, *window; /* [2][Lp + edges], the last [3] */
    double *factors;                 /* [3][Lp]: between states */
    REAL *occupied; /* [BLOCK][Lp], the rows o_step apart */
    int64_t o_step;
    int64_t from, to; /* on the way back: labels with a share of the probability at the row that was gone through last */
    int64_t bottom;   /* and the first label that beta is known of */
    double *border; /* of a half: [2][2][Lp], alpha after its last row and its exponents, */
    double crest;   /* less the largest of them */
    FN(choice) *notes; /* by every fourth row, for when alpha goes through it again; NULL without a gradient */
    int32_t again;
    unsigned char *checkpoints; /* [2][2][Lp] each: mantissas and exponents, of labels and of blanks */
    /* Where checkpoints take much: [2][Lp] each, of those whose exponents lie close together. The others' least is NaN;
     * their room among the checkpoints is seldom touched. */
    REAL *packed;
    int16_t *above;
    double *least;
} FN(work);

enum { FN(PAD) = 16, FN(SHORTEST) = 4 }; /* room beside arrays of states; rows of the shortest run */
#define KEEP_RUNS 4 /* a block of more runs is not kept */

static void *FN(take)(unsigned char *base, size_t *used, size_t bytes)
{
    void *at = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

static size_t FN(room_of_row)(int64_t C) { return ((size_t)C + 15) / 16 * 16; }

/* Cuts base into the arrays, or with base NULL counts the bytes. z: bytes of a state's mantissa or exponent. */
static size_t FN(lay_out)(FN(work) *w, const ctc_extent *e, unsigned char *base, size_t z)
{
    size_t used = 0, r = sizeof(REAL), edge = FN(PAD);
    size_t Lp = ((size_t)e->L + W) / W * W, T = ((size_t)e->T + BLOCK - 1) / BLOCK * BLOCK, C = (size_t)e->C;
    int dense = e->dense;
    size_t U = dense ? C : (size_t)e->L + 1, columns = (U + W - 1) / W * W + !(U % W);
    size_t blocks = T / BLOCK, most_used = (U < Lp ? U : Lp) + FN(PAD);
#define TAKE(count, size) FN(take)(base, &used, (size_t)(count) * (size))
    /* First what does not depend on z: the phases of a split sample share it. */
    w->top = TAKE(T, r);
    w->inverse = TAKE(T, r);
    w->stage = e->strided ? TAKE((dense ? BLOCK : 1) * C * (e->split ? (size_t)e->split : 1), 8) : NULL;
    w->split = e->split;
    w->rests = e->split ? TAKE(T, r) : NULL;
    w->bounds = e->split ? TAKE(3 * T, r) : NULL;
    w->totals = e->split && e->grad ? TAKE(2 * T, r) : NULL;
    w->reached = e->split && e->grad ? TAKE(2 * blocks, 4) : NULL;
    w->tables = e->split ? TAKE(blocks * columns, BLOCK * r) : NULL;
    w->tabled = e->split ? TAKE(blocks, 1) : NULL;
    w->seen = !IS_DOUBLE && e->T >= ECHOING_ROWS / 2 ? TAKE((size_t)1 << SEEN_BITS, 4) : NULL;
    w->row = e->rooms ? TAKE((e->split ? (size_t)e->split : 1) * FN(room_of_row)(e->C), r) : NULL;
    w->used = TAKE(most_used, 4);
    w->classes = TAKE(most_used, 4);
    w->column = TAKE(Lp + 1, 4);
    w->position = TAKE(Lp + 1, 4);
    w->gathered = TAKE(most_used, r);
    w->rare_e = TAKE(most_used, 8);
    w->rare_binades = TAKE(most_used, 8);
    /* What a slot that keeps takes, and how many there is room for. */
    size_t one = (BLOCK * (3 * Lp + 1) + KEEP_RUNS * 2 * Lp) * z + BLOCK * (1 + (dense ? U + W : 0)) * r + 6 * 64;
    /* With every other checkpoint left out blocks come back in pairs, and few slots would be much beside the rest. */
    size_t apart = e->grad && blocks * 4 * Lp * z > WORTH_PACKING ? 2 : 1;
    size_t keeping = e->grad && apart == 1 ? e->keep / one : 0;
    /* Blocks that are not kept may at least keep their tables. */
    size_t table = columns * BLOCK * r, tabled = 0;
    if (e->grad && dense && apart == 1 && keeping < blocks && e->keep > blocks * table) {
        keeping = (e->keep - blocks * table) / (one - table);
        tabled = blocks - keeping;
    }
    if (keeping > blocks) keeping = blocks;
    size_t all = keeping + apart;
    w->apart = (int64_t)apart;
    w->slots = TAKE(all, sizeof(FN(slot)));
    for (size_t k = 0; k < all; k++) {
        FN(slot) local, *slot = base && !w->helps ? w->slots + k : &local;
        slot->most_runs = k > 0 && k <= keeping ? KEEP_RUNS : BLOCK;
        slot->rows = TAKE(BLOCK * 3 * Lp, z);
        slot->exps = TAKE((size_t)slot->most_runs * 2 * Lp, z);
        slot->table = e->split ? w->tables : k == 0 || dense ? TAKE(columns * BLOCK, r) : base ? w->slots[0].table : NULL;
        slot->eb = TAKE(BLOCK, z);
        slot->range = TAKE(BLOCK, r);
    }
    w->table_size = (int64_t)(columns * BLOCK);
    if (!e->split) {
        w->tables = tabled ? TAKE(tabled, table) : NULL;
        w->tabled = TAKE(tabled, 1);
    }
    w->keeping = (int64_t)keeping;
    w->spare = (int64_t)keeping + 1;
    w->skip = TAKE(Lp + 2 * edge, z);
    w->passes = TAKE(Lp, z);
    for (int k = 0; k < 2; k++) w->states[k] = TAKE(2 * Lp, z), w->all_exps[k] = TAKE(2 * Lp, z);
    w->start = TAKE(2 * (Lp + 2 * edge), z);
    w->aligned = TAKE(2 * (Lp + 2 * edge), z);
    w->window = TAKE(3 * (Lp + 2 * edge), z);
    w->factors = TAKE(3 * Lp, z);
    w->ends = TAKE(2 * (blocks + 1), 4);
    w->border = e->halved ? TAKE(4 * Lp, 8) : NULL;
    w->notes = NULL;
    if (e->grad) {
        size_t points = (blocks + apart - 1) / apart, packed = apart > 1 ? points : 0;
        w->packed = TAKE(packed, 2 * Lp * r);
        w->above = TAKE(packed, 2 * Lp * sizeof(int16_t));
        w->least = TAKE(packed, sizeof(double));
        w->checkpoints = TAKE(points, 4 * Lp * z);
        w->notes = TAKE(T / FN(SHORTEST), sizeof(FN(choice)));
    }
#undef TAKE
    w->dense = dense;
    w->U = (int64_t)U;
    return used;
}

static size_t FN(room)(const ctc_extent *e)
{
    FN(work) w;
    size_t doubles = FN(lay_out)(&w, e, NULL, 8);
    if (IS_DOUBLE || !e->grad || w.keeping * BLOCK >= e->T) return doubles; /* floats keep no more than all, too */
    size_t floats = FN(lay_out)(&w, e, NULL, 4);
    return floats > doubles ? floats : doubles;
}

static void FN(use)(FN(work) *w, int which)
{
    w->state = w->states[which];
    w->exps = w->all_exps[which];
}

/* The slot that keeps a block, or the scratch slot. */
static void FN(take_slot)(FN(work) *w, int64_t k)
{
    FN(slot) *slot = w->slot = w->slots + (k > 0 ? k : 0);
    w->table = slot->table;
    w->eb = slot->eb;
    w->range = slot->range;
}

/* The same for a block that may keep its table. Returns whether it does. */
static int FN(take_table)(FN(work) *w, int64_t k, int64_t block)
{
    FN(take_slot)(w, k);
    if (!w->tables || block >= w->blocks - w->keeping) return 0;
    w->table = w->tables + block * w->table_size;
    return 1;
}

/* A whole number of vectors, often one: not worth a call. */
static inline void FN(copy)(void *to, const void *from, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += sizeof(V(t)))
        memcpy((unsigned char *)to + k, (const unsigned char *)from + k, sizeof(V(t)));
}

static void FN(all_labels)(FN(work) *w, int64_t block)
{
    w->ends[2 * block] = 0;
    w->ends[2 * block + 1] = INT32_MAX;
}

/* Past the last label that a path has reached before a block. */
static int64_t FN(front)(const FN(work) *w, int64_t t0)
{
    int64_t end = w->ends[2 * (t0 / BLOCK) + 1];
    return t0 < end ? t0 : end;
}

/* Makes states such that no path has reached. */
static void FN(empty)(FN(work) *w, int64_t from, int64_t to)
{
    size_t z = w->doubles ? sizeof(double) : sizeof(float);
    for (int64_t k = 0; k < 2 && from < to; k++) {
        memset((unsigned char *)w->state + (size_t)(k * w->Lp + from) * z, 0, (size_t)(to - from) * z);
        memset((unsigned char *)w->exps + (size_t)(k * w->Lp + from) * z, 0, (size_t)(to - from) * z);
    }
}

/* The labels that matter within a block: reached from the start, and able to reach the end. */
static void FN(cone)(const FN(work) *w, int64_t t0, int n, int64_t *i0, int64_t *i1)
{
    int64_t low = w->L - w->all + t0 - 1; /* with the neighbour that the first step still needs */
    int64_t lanes = w->doubles ? VD_LANES : W, high = FN(front)(w, t0) + n, reached = w->ends[2 * (t0 / BLOCK)];
    low = low > reached ? low : reached;
    high = high < w->L ? high : w->L;
    *i0 = low / lanes * lanes;
    *i1 = (high / lanes + 1) * lanes;
}

/* Of those, on the way back, the labels that lead to some with a share of the probability `rows` rows on. */
static void FN(cone_back)(const FN(work) *w, int64_t t0, int n, int64_t rows, int64_t from, int64_t to, int64_t *i0,
                          int64_t *i1)
{
    int64_t lanes = w->doubles ? VD_LANES : W, low = from - rows - 1; /* the neighbour again */
    FN(cone)(w, t0, n, i0, i1);
    low = low > 0 ? low / lanes * lanes : 0;
    to = (to + lanes - 1) / lanes * lanes;
    if (low > *i0) *i0 = low;
    if (to < *i1) *i1 = to;
}
