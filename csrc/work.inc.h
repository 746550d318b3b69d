/* The scratch of one sample, and the numbers that depend on the element type. */

#define FLOAT_RANGE 96 /* binades that the emissions of a row may spread over and still be exact as floats */
#define TABLE_RANGE (IS_DOUBLE ? 900 : FLOAT_RANGE)
/* Floats are faster than doubles as long as many rows share exponents. A sample goes on in doubles where its rows have
 * more binades than this on average, or where for a while its blocks take more than three runs each. Short runs cost
 * less where registers hold all states, and cannot be avoided before the first path has come to the last label. */
#define SHARP_ROWS(L) ((L) < 4 * VF_LANES ? 16 : 10)
#define SHARP_STRAIN(L) (10 + (L) / 3)
/* Rows that are alike round their exponentials and sums alike, so that rounding adds up. So many of them make a
 * gradient computed in floats wrong by some 1e-6. (The halves of a sample count apart: it may have twice as many.) */
#define ALIKE_ROWS(T) (16 + (T) / 1024)
/* The same for rows that come again in whatever order. They are looked for in every other block, or in every fourth
 * where the sample has few rows, by a hash table of 2^SEEN_BITS of their sums (or keys, see `few`: where labels are
 * very few, rows may have the same key by chance, and more are let pass). In fewer than ECHOING_ROWS rows they do not
 * add up to as much: of some 100,000 samples made for it the worst was 2.0e-6 off with 28 rows, 2.6e-6 with 32. */
#define ECHO_ROWS(T, few) (8 + (T) / ((few) > 1 ? 32 : 512))
#define ECHO_BLOCKS(T) ((T) < 200 ? 4 : 2)
#define SEEN_BITS(T) ((T) < 200 ? 7 : 10)
#define ECHOING_ROWS 29
/* The same for what a single class emits, whatever others do: two paths may differ by how long they stay in it. Every
 * eighth block is counted, in float32: so many rows stand for eight times as many, and make the gradient wrong by at
 * most some 1e-6; half as many in half a sample. In fewer than STICKING_ROWS rows they cannot add up to much more. */
#define STUCK_ROWS 8
#define STUCK_BLOCKS 8
#define STICKING_ROWS 400
/* The loss is what the row sums take out of ln p, less what the number of paths brings back. Where row sums take out
 * more than so many times the loss, sums in floats have too few digits; sooner where they are not sums of the very
 * exponentials that are emitted. */
#define SUMS_TO_LOSS(dense) ((dense) ? 16 : 8)
/* In samples of so many rows differences of logits are taken exactly, whatever their size. */
#define MANY_ROWS 400
/* The reference of a row is its largest logit unless that beats every used class by more nats than this. */
#define REFERENCE_SLACK 8

/* Exponents are sums of whole binades, up to about the largest logit times four times the rows. Where those have more
 * bits than this a double would round them, and they are counted in steps of a grid: see set_grid. */
#define GRID_BITS 50

#define RANGE_CEILING 4000 /* binades; more than any run may spread over */

/* Labels that together have less than this of the probability at a row are left out, twice a block: over 20000 rows
 * that is less than the last place of 1. */
#define NEGLIGIBLE (IS_DOUBLE ? 0x1p-66 : 0x1p-36)

/* With so many classes to each used one the softmax is written in the first pass even in large batches, where its row
 * has left the cache by the time that the used classes are mended. */
#define EARLY_CLASSES 48

/* Flags of a row: a used class has probability 0; emissions that need whole binades beside them. */
enum { FN(ROW_ZERO) = 1, FN(ROW_WIDE) = 2 };

/* Whether labels are so few that one of them may take part in enough rows for the rounding of its own logits to add
 * up, whatever the other classes do. 2: so few that keys may be the same by chance. */
static inline int FN(few_labels)(const ctc_sample *s)
{
    int64_t labels = (int64_t)s->L + 1;
    return IS_DOUBLE ? 0 : (16 * labels <= s->all) + (64 * labels <= s->all);
}

/* How alpha goes on from a row: a run of so many rows, whose states share one exponent (flat) or not. */
typedef struct {
    double unit; /* flat: that exponent; else what is taken off the exponents that states have when the run begins */
    int32_t rows, flat;
} FN(choice);

/* What the way back needs of one block of rows. One such slot is scratch, filled again for every block; others keep
 * what the way forward has put there, where memory allows. Arrays declared double hold states: float or double. */
typedef struct {
    double *rows;  /* [BLOCK][3][Lp]: mantissas of alpha, of the labels and of the blanks; emissions of the labels */
    double *exps;  /* [most_runs][2][Lp]: exponents of alpha, one set for each run */
    double *eb;    /* [BLOCK]: emissions of the blank */
    REAL *table;   /* [U + 1][BLOCK]: exp(logit - largest logit) of each column's class; zeros in the last column */
    REAL *range;   /* [BLOCK]: binades that the emissions of a row spread over */
    double reference[BLOCK];    /* the logit that a row's emissions are relative to */
    REAL before[BLOCK / 4 + 1]; /* sums of the ranges of the first 0, 4, 8... rows, each at most RANGE_CEILING */
    int32_t flat[BLOCK];        /* by run: its states share one exponent */
    int32_t flags[BLOCK];       /* by row */
    int32_t first_row[BLOCK + 1], runs; /* where each run begins, and the last one ends; how many there are */
    int32_t unusual;                    /* whether any flag may be set */
    int32_t most_runs; /* how many runs `exps` has room for, a power of two */
    int32_t kept;      /* whether the block had no more runs than that, so that nothing here was overwritten */
} FN(slot);

typedef struct {
    const ctc_sample *s;
    int64_t L, Lp;     /* labels; the same in whole vectors, with room for one more */
    int64_t C, U;      /* classes; columns of the table, but for the one of zeros */
    int64_t T, blocks; /* rows of the sample, or of this half of it */
    int64_t all;       /* rows of the whole sample */
    int32_t dense;     /* each class has a column of the table, not the used ones alone */
    int32_t failed;    /* NO_PATH or NOT_A_NUMBER */
    int32_t early;     /* the softmax is written in the first pass, and only its used classes change on the way back */
    int32_t doubles;   /* the states are doubles, not floats */

    /* What forward watches, to see whether floats will do. */
    int32_t alone;   /* rows to go before another run is tried */
    int32_t strain;  /* by how many the runs of the last blocks are more than three each */
    int32_t alike;   /* rows so far whose sum is nearly that of the row before */
    int32_t echoes;  /* rows so far, in every other block, whose sum or key an earlier one had too */
    int32_t *seen;   /* the bits of those sums or keys, hashed; NULL where they are not counted */
    int32_t stuck;   /* the most rows, in every eighth block, in which one class emitted what it did before */
    int32_t few;     /* labels are few (2: very few): keys are taken, of the logits of labels and blank, not sums */
    int32_t careful; /* 1: emissions are computed in doubles; 2: row sums as well */
    int32_t exactly; /* those of the block at hand are, to `exact` */
    int32_t spreads; /* a row so far had more binades than the table has */

    /* ln p = ln_p + base: what the recursion finds, and what references and row sums have taken out. */
    double base;            /* all of that but for the last row sums, which are in `more` */
    double more;            /* the product of those sums, less 1: as exact near 0 as they are; of 16 rows below 2^496 */
    double binades, widest; /* the sum of all ranges so far, each counted as in `before`; the largest of this block */
    double blanks[BLOCK / 4 + 1]; /* as `before`: sums of how far below its reference each row emits the blank */
    int32_t weighed; /* whether those are known for the block at hand */
    int32_t arrived; /* whether paths have reached all states before the row at hand; -1: not known yet */
    double grid;            /* step of the exponents of WIDE rows; 0: single binades; below 0: not known yet */
    double shrink;          /* of the exponents to a binade, where a grid is needed */
    double most;            /* the largest logit of a used class, or `limit` if that is less */
    double limit;           /* classes so many nats below their row's reference are on no path that matters */
    double log2_p, ln_p;    /* the first in whole binades, as the exponents count them */
    double expected;        /* log2 of a probability that p is expected to be no less than */
    int32_t expects;        /* 1: `expected` is set; 0: not yet; -1: nothing is to be expected */
    int32_t cut;            /* paths of less than that were left out */
    int32_t *ends;          /* [blocks + 1][2]: labels that paths have reached before a block: first, one past last */

    /* By row. */
    REAL *top, *inverse; /* the largest logit; 1 / the sum of exp(logit - largest) */

    /* Of a split sample. */
    REAL *rests;      /* [T]: sums of exp(logit - largest), less 1 */
    REAL *bounds;     /* [blocks][3][BLOCK]: least and largest of the used logits, and keys */
    REAL *totals;     /* [blocks][2][BLOCK]: sums of the occupancies, of labels and of the blank */
    int32_t *reached; /* [blocks][2]: the labels that the way back went through */
    int32_t split;    /* how many threads share it */
    int32_t helps;    /* this is the view of one of them, which leaves the slots as they are */

    /* Of the block at hand. */
    int32_t rare;           /* bit r: what row r emits is not in the table */
    FN(slot) *slot, *slots; /* the one at hand; all: slots[0] is scratch, then those that keep, then the spare one */
    int64_t keeping;        /* how many keep: the last blocks, which are still in the cache when the way back begins */
    int64_t spare, beside;  /* the number of the spare slot, and of the block that it holds */
    int64_t apart;          /* blocks from checkpoint to checkpoint: 1 or 2 */
    REAL *table;            /* that of the slot, or one of `tables` */
    REAL *tables;           /* of the first blocks, where memory allows, or NULL; of a split sample all, and there each
                             * block's occupancies take the place of its table */
    int64_t table_size;     /* of each, in elements */
    unsigned char *tabled;  /* by block of `tables`: the table holds all that its rows emit */
    REAL *range;
    REAL relative[BLOCK]; /* what its rows are relative to; of infinite logits anything */
    REAL far[BLOCK];      /* by row of a block: how far from 0 a used class's logit has been so far, at most */
    double *eb;
    REAL *stage;                         /* rows of strided classes, gathered; NULL where there are none */
    REAL *row;                           /* room for C numbers; NULL where they are written to the gradient at once */
    FN(late) late;                       /* the row that is still to be written */
    int32_t *used, *classes, used_count; /* where the used classes' columns begin in the table; those classes */
    int32_t *column;                     /* [Lp + 1]: where each label's begins, then that of zeros, last the blank's */
    int32_t *position;                   /* of each label among the used classes; the blank's is [L] */
    REAL *gathered;                      /* of a rare row, by position: logits, */
    double *rare_e, *rare_binades;       /* emissions, and whole binades beside them */
    REAL *emitted, *sticks;              /* by position: what stuck rows emit, and how many they are; or NULL */
    double *exact;                       /* [used_count + 1][BLOCK]: what used classes emit, and zeros, if `exactly` */

    /* The recursion. */
    double *skip;                     /* 0 where label i - 1 may go to label i directly, very low elsewhere */
    double *passes;                   /* [Lp]: 1 there, 0 elsewhere */
    double *state, *states[2];        /* [2][Lp]: mantissas of alpha or beta, whichever is at hand; of both */
    double *exps, *all_exps[2];       /* their exponents */
    double *start, *aligned, *window; /* [2][PAD + Lp + PAD], the last one [3]: see units.inc.h */
    double *factors;                  /* [3][Lp]: between the units of neighbours, see steps.inc.h */
    REAL *occupied;                   /* occupancies of the labels, rows o_step apart */
    int64_t o_step;
    int64_t from, to;                 /* the labels with a share of the probability where beta stands */
    int64_t bottom;                   /* the first label that beta is known of */
    double *border, crest;            /* of a half: [2][2][Lp], alpha after its last row, with exponents less `crest` */
    FN(choice) *notes;                /* by every fourth row: the runs that alpha took; NULL without a gradient */
    int32_t again;                    /* alpha is computed once more, in those runs */
    unsigned char *checkpoints;       /* [2][2][Lp] each: mantissas and exponents of labels, then of blanks */

    /* Where checkpoints would take much: [2][Lp] each, if exponents lie close together. Else `least` is NaN, and the
     * checkpoint stands among the others, whose room is seldom touched. */
    REAL *packed;   /* mantissas */
    int16_t *above; /* exponents above the least */
    double *least;
} FN(work);

/* So many rows, and those that fill their last vector. */
static inline int FN(in_vectors)(int rows) { return (rows + W - 1) / W * W; }

/* Room at both ends of arrays of states; rows of the shortest run. */
enum { FN(PAD) = 16, FN(SHORTEST) = 4 };
#define KEEP_RUNS 4 /* a block of more runs is not kept */

static void *FN(take)(unsigned char *base, uint64_t *used, uint64_t bytes)
{
    void *at = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

static uint64_t FN(room_of_row)(int64_t C) { return ((uint64_t)C + 15) / 16 * 16; }

/* From one gathered row to the next: not a power of two, of which few lines have room in the nearest cache. */
static int64_t FN(gathered_step)(int64_t C) { return (int64_t)FN(room_of_row)(C) | 16; }

/* Cuts base into the arrays, or with base NULL counts the bytes. z: bytes of a state's mantissa or exponent. */
static uint64_t FN(lay_out)(FN(work) *w, const ctc_extent *e, unsigned char *base, uint64_t z)
{
    uint64_t used = 0, r = sizeof(REAL), edge = FN(PAD);
    uint64_t Lp = ((uint64_t)e->L + W) / W * W, T = ((uint64_t)e->T + BLOCK - 1) / BLOCK * BLOCK, C = (uint64_t)e->C;
    int dense = e->dense;
    uint64_t U = dense ? C : (uint64_t)e->L + 1, columns = (U + W - 1) / W * W + !(U % W);
    uint64_t threads = e->split ? (uint64_t)e->split : 1, blocks = T / BLOCK, most_used = (U < Lp ? U : Lp) + FN(PAD);
#define TAKE(count, size) FN(take)(base, &used, (uint64_t)(count) * (size))
    /* First what the phases of a split sample share, none of which depends on z: it lies in the same place always. */
    w->top = TAKE(T, r);
    w->inverse = TAKE(T, r);
    uint64_t gathered = dense ? 0 : (uint64_t)e->strided * (uint64_t)FN(gathered_step)(e->C);
    w->stage = gathered ? TAKE(threads * gathered, r) : NULL;
    w->split = e->split;
    w->rests = e->split ? TAKE(T, r) : NULL;
    w->bounds = e->split ? TAKE(3 * T, r) : NULL;
    w->totals = e->split && e->grad ? TAKE(2 * T, r) : NULL;
    w->reached = e->split && e->grad ? TAKE(2 * blocks, 4) : NULL;
    w->tables = e->split ? TAKE(blocks * columns, BLOCK * r) : NULL;
    w->tabled = e->split ? TAKE(blocks, 1) : NULL;
    w->seen = !IS_DOUBLE && e->T >= ECHOING_ROWS / 2 ? TAKE((uint64_t)1 << SEEN_BITS(2 * e->T), 4) : NULL;
    w->row = e->rooms ? TAKE(threads * FN(room_of_row)(e->C), r) : NULL;
    w->used = TAKE(most_used, 4);
    w->classes = TAKE(most_used, 4);
    w->column = TAKE(Lp + 1, 4);
    w->position = TAKE(Lp + 1, 4);
    w->gathered = TAKE(most_used, r);
    w->rare_e = TAKE(most_used, 8);
    w->rare_binades = TAKE(most_used, 8);
    int counts = !IS_DOUBLE && e->dtype == CTCBIND_FLOAT32 && e->T >= STICKING_ROWS / 2;
    w->emitted = counts ? TAKE(most_used, r) : NULL;
    w->sticks = counts ? TAKE(most_used, r) : NULL;
    w->exact = TAKE(IS_DOUBLE ? 0 : most_used * BLOCK, 8);
    /* What a slot that keeps takes, and how many there is room for. */
    uint64_t one = (BLOCK * (3 * Lp + 1) + KEEP_RUNS * 2 * Lp) * z + BLOCK * (1 + (dense ? U + W : 0)) * r + 6 * 64;
    /* With every other checkpoint left out blocks are computed again in pairs, and the few slots that memory allows
     * would save little. */
    uint64_t apart = e->grad && blocks * 4 * Lp * z > WORTH_PACKING ? 2 : 1;
    uint64_t keeping = e->grad && apart == 1 ? e->keep / one : 0;
    /* Blocks that are not kept may at least keep their tables. */
    uint64_t table = columns * BLOCK * r, tabled = 0;
    if (e->grad && dense && apart == 1 && keeping < blocks && e->keep > blocks * table) {
        keeping = (e->keep - blocks * table) / (one - table);
        tabled = blocks - keeping;
    }
    if (keeping > blocks) keeping = blocks;
    uint64_t all = keeping + apart;
    w->apart = (int64_t)apart;
    w->slots = TAKE(all, sizeof(FN(slot)));
    for (uint64_t k = 0; k < all; k++) {
        FN(slot) local, *slot = base && !w->helps ? w->slots + k : &local;
        slot->most_runs = k > 0 && k <= keeping ? KEEP_RUNS : BLOCK;
        slot->rows = TAKE(BLOCK * 3 * Lp, z);
        slot->exps = TAKE((uint64_t)slot->most_runs * 2 * Lp, z);
        slot->table = e->split            ? w->tables
                      : k == 0 || dense ? TAKE(columns * BLOCK, r)
                      : base            ? w->slots[0].table
                                        : NULL;
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
        uint64_t points = (blocks + apart - 1) / apart, packed = apart > 1 ? points : 0;
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

static uint64_t FN(room)(const ctc_extent *e)
{
    FN(work) w;
    uint64_t doubles = FN(lay_out)(&w, e, NULL, 8);
    if (IS_DOUBLE || !e->grad || w.keeping * BLOCK >= e->T) return doubles; /* all are kept, and floats take less */
    uint64_t floats = FN(lay_out)(&w, e, NULL, 4);
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

/* Takes a slot for a block that may have a table of its own. Returns whether it has. */
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

/* One past the last label that a path has reached before a block. */
static int64_t FN(front)(const FN(work) *w, int64_t t0)
{
    int64_t end = w->ends[2 * (t0 / BLOCK) + 1];
    return t0 < end ? t0 : end;
}

/* Makes these states ones that no path has reached. */
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

/* Of those, on the way back, the labels from which paths lead to from..to within `rows` rows. */
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
