/* The scores of all frames are kept, and the best path is followed back through them. Where that table is large, they
 * are kept at every `block` frames only; going back, a block is computed again. A path moves up by one label a frame at
 * most, so B frames that end in label i need the labels from i - B on in the first frame, and one less in each. */
#include "align.h"

#include <stdlib.h>

#include "kernel.h"
#include "size.h"
#include "trellis.h"

enum { CHUNK = 512 }; /* labels whose emissions are gathered at a time */

static int64_t block_of(int64_t T, int64_t L)
{
    if (T * (L + 2) <= 1 << 17) return T; /* a table of all of it is small, and nothing is done twice */
    /* T/B rows of S and B^2 scores are least near 2B^3 = TS; a wide band costs time, so stay below S/16 */
    int64_t S = 2 * L + 1, B = 64;
    while (B < S / 16 && 2 * B * B * B < T * S) B += 64;
    return B < T ? B : T;
}

/* The scores of the best paths to the labels and blanks of some frames: a line for each frame, or two in turns. A line
 * begins with what stands for the label before its first. */
typedef struct lines {
    double *at;
    int64_t first;  /* frame */
    int64_t lowest; /* label of the first line; may be negative */
    int64_t width;  /* labels of the first line; the blanks are one more */
    int turns;      /* two lines in turns */
    int narrows;    /* each line begins one label later than the one before */
} lines;

typedef struct viterbi {
    const ctcbind_graph *g;
    int64_t T, L, K, block; /* K: the classes that states have, each once */
    ctc_sample sample;      /* as whose rows the kernel reads those of g */
    ctc_rows read;
    ctcbind_norm *norms;    /* T */
    double *room;           /* for the kernel */
    double *scores;         /* K: of one frame */
    int32_t *classes;       /* K */
    int32_t *place;         /* L + 1: of each label and of the blank, which of the K classes */
    double *skip;           /* L: 0 where the label may follow the one before it directly, else -inf */
    lines forward;          /* all frames, or two in turns */
    double *kept;           /* rows of L labels and L + 1 blanks: after frame 0, block, 2 block, ... */
    double *again;          /* the lines of a block */
} viterbi;

static int64_t rows_kept(int64_t T, int64_t block) { return block < T ? (T - 1) / block + 1 : 0; }
static int64_t most_classes(int64_t L, int64_t C) { return L + 1 < C ? L + 1 : C; }

static int64_t line_size(int64_t width) { return 2 * width + 2; }

/* What `count` lines take, each two less than the one before if they narrow. */
static int64_t lines_size(int64_t width, int64_t count, int narrows)
{
    return count * line_size(width) - (narrows ? count * (count - 1) : 0);
}

/* Where label i of frame t stands; *blank: the blank before it. */
static double *line_at(const lines *l, int64_t t, int64_t i, double **blank)
{
    int64_t k = l->turns ? (t - l->first) & 1 : t - l->first, later = l->narrows ? k : 0;
    double *label = l->at + lines_size(l->width, k, l->narrows) + 1 + (i - l->lowest - later);
    *blank = label + (l->width - later);
    return label;
}

static int64_t block_width(int64_t block) { return block + 2; }

size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C)
{
    int64_t block = block_of(T, L), most = most_classes(L, C);
    int64_t doubles = 2 * T + ctcbind_room_of_rows(C) + most + L + 1;
    if (block == T) doubles += lines_size(L, T < 2 ? 2 : T, 0);
    else doubles += lines_size(L, 2, 0) + rows_kept(T, block) * (2 * L + 1) + lines_size(block_width(block), block, 1);
    return ctcbind_size((uint64_t)doubles * sizeof(double) + (uint64_t)(most + L + 1 + C) * sizeof(int32_t));
}

/* Labels and blanks from..to - 1 of one frame. */
CTCBIND_CLONES static void advance(const double *restrict label, const double *restrict blank,
                                   const double *restrict skip, const double *restrict emit, double emit_blank,
                                   double stay, int64_t count, double *restrict next_label,
                                   double *restrict next_blank)
{
    for (int64_t i = 0; i < count; i++) {
        double before = label[i - 1], same = label[i] + stay, from = blank[i], over = before + skip[i];
        double best = from > same ? from : same;
        best = over > best ? over : best;
        next_label[i] = best + emit[i];
        next_blank[i] = (before > from ? before : from) + emit_blank;
    }
}

static void gather(const viterbi *v, int64_t t, int64_t from, int64_t count, double *restrict emit)
{
    const int32_t *place = v->place + from;
    const double *scores = v->scores;
    for (int64_t i = 0; i < count; i++) emit[i] = scores[place[i]];
    if (v->g->bonus)
        for (int64_t i = 0; i < count; i++) emit[i] += ctcbind_bonus_at(v->g, t, 2 * (from + i) + 1);
}

/* Reads what is to be taken off the logits of a block of frames; 0 where one holds a NaN. */
static int normalise(viterbi *v, int64_t t0)
{
    ctc_best best[BLOCK];
    int n = v->T - t0 < BLOCK ? (int)(v->T - t0) : BLOCK, all = 1;
    v->read(&v->sample, t0, n, v->room, best);
    for (int r = 0; r < n; r++) all &= ctcbind_norm_of(best + r, v->norms + t0 + r);
    return all;
}

/* The scores of the classes that states have: ln softmax less the prior. */
static void read_scores(const viterbi *v, int64_t t)
{
    const ctcbind_graph *g = v->g;
    ctcbind_read_classes(&g->rows, (int32_t)t, v->classes, v->K, v->scores);
    ctcbind_take_off(v->scores, (int32_t)v->K, v->norms[t]);
    for (int64_t k = 0; k < v->K && g->prior; k++) v->scores[k] -= g->prior[v->classes[k]];
}

static double silence_score(const viterbi *v) { return v->scores[v->place[v->L]]; }

/* The first label from whose blank the end can still be reached, and the one past the last that can be reached. */
static int64_t first_label(const viterbi *v, int64_t t)
{
    int64_t first = v->L - (v->T - t);
    return first > 0 ? first : 0;
}
static int64_t end_label(const viterbi *v, int64_t t) { return t + 1 < v->L ? t + 1 : v->L; }

static void start(const viterbi *v)
{
    double *blank, *label = line_at(&v->forward, 0, 0, &blank);
    for (int64_t i = -1; i < lines_size(v->L, 2, 0) - 1; i++) label[i] = -INFINITY; /* of both lines, if in turns */
    blank[0] = silence_score(v) + ctcbind_bonus_at(v->g, 0, 0);
    if (v->L) label[0] = v->scores[v->place[0]] + ctcbind_bonus_at(v->g, 0, 1);
}

/* Frame t of the labels from..to - 1 and the blanks beside them, the blank after `to - 1` where it is the last. */
static void step(const viterbi *v, const lines *l, int64_t t, int64_t from, int64_t to)
{
    double emit[CHUNK], stay = v->g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0;
    double *blank, *label = line_at(l, t - 1, from, &blank);
    double *next_blank, *next_label = line_at(l, t, from, &next_blank);
    double silence = silence_score(v);
    next_label[-1] = -INFINITY;
    for (int64_t at = from; at < to; at += CHUNK) {
        int64_t count = to - at < CHUNK ? to - at : CHUNK, k = at - from;
        gather(v, t, at, count, emit);
        advance(label + k, blank + k, v->skip + at, emit, silence, stay, count, next_label + k, next_blank + k);
        if (v->g->bonus)
            for (int64_t i = 0; i < count; i++) next_blank[k + i] += ctcbind_bonus_at(v->g, t, 2 * (at + i));
    }
    if (to == v->L) {
        double before = label[to - from - 1], same = blank[to - from];
        next_blank[to - from] = (before > same ? before : same) + silence;
        if (v->g->bonus) next_blank[to - from] += ctcbind_bonus_at(v->g, t, 2 * to);
    } else next_label[to - from] = next_blank[to - from] = next_blank[to - from + 1] = -INFINITY; /* not reached yet */
}

static void keep(viterbi *v, int64_t t)
{
    double *blank, *label = line_at(&v->forward, t, 0, &blank), *to = v->kept + t / v->block * (2 * v->L + 1);
    memcpy(to, label, (size_t)v->L * sizeof *to);
    memcpy(to + v->L, blank, (size_t)(v->L + 1) * sizeof *to);
}

/* Follows the path back from `state` at frame `last` to the first of the lines. Returns the state there. */
static int64_t follow(const viterbi *v, const lines *l, int64_t last, int64_t state, int32_t *states)
{
    double stay = v->g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0;
    for (int64_t t = last; t > l->first; t--) {
        int64_t i = state / 2;
        double *blank, *label = line_at(l, t - 1, i, &blank), before = label[-1], from = blank[0];
        states[t] = (int32_t)state;
        if (state & 1) {
            double same = label[0] + stay, best = from > same ? from : same;
            state -= before + v->skip[i] > best ? 2 : from > same;
        } else state -= before > from;
    }
    states[l->first] = (int32_t)state;
    return state;
}

/* The same to frame `first`, which is kept. */
static int64_t go_back(const viterbi *v, int64_t first, int64_t last, int64_t state, int32_t *states)
{
    const double *kept = v->kept + first / v->block * (2 * v->L + 1);
    int64_t lowest = state / 2 - (last - first), end = state / 2 + 1 < v->L ? state / 2 + 1 : v->L;
    lines l = {.at = v->again, .first = first, .lowest = lowest, .width = block_width(v->block), .narrows = 1};
    int64_t from = lowest > 0 ? lowest : 0;
    double *blank, *label = line_at(&l, first, from, &blank);
    label[-1] = -INFINITY;
    memcpy(label, kept + from, (size_t)(end - from) * sizeof *kept);
    memcpy(blank, kept + v->L + from, (size_t)(end - from + (end == v->L)) * sizeof *kept);
    for (int64_t t = first + 1; t < last; t++) {
        from = lowest + (t - first) > 0 ? lowest + (t - first) : 0;
        read_scores(v, t);
        step(v, &l, t, from, end);
    }
    return follow(v, &l, last, state, states);
}

/* The class of each frame, the first and last frame of each label, and the mean of its ln y. */
static void measure(viterbi *v, ctcbind_alignment *to)
{
    for (int64_t t = 0; t < v->T; t++) {
        int32_t i = to->states[t] / 2;
        to->classes[t] = v->g->blank;
        if (!(to->states[t] & 1)) continue;
        to->classes[t] = v->g->labels[i];
        double score = ctcbind_read_one(&v->g->rows, (int32_t)t, v->g->labels[i]);
        ctcbind_take_off(&score, 1, v->norms[t]);
        if (to->starts[i] < 0) {
            to->starts[i] = (int32_t)t;
            to->scores[i] = score;
        } else to->scores[i] += score;
        to->ends[i] = (int32_t)t + 1;
    }
    for (int64_t i = 0; i < v->L; i++) to->scores[i] /= to->ends[i] - to->starts[i];
}

static int run(viterbi *v, ctcbind_alignment *to)
{
    for (int64_t i = 0; i < v->L; i++) v->skip[i] = i && ctcbind_skips(v->g, 2 * i + 1) ? 0 : -INFINITY;
    for (int64_t t = 0; t < v->T; t++) {
        if (ctcbind_sample_stopped(v->L + v->g->rows.C)) return CTCBIND_ROWS_STOPPED;
        if (t % BLOCK == 0 && !normalise(v, t)) return CTCBIND_ROWS_NAN;
        read_scores(v, t);
        if (t == 0) start(v);
        else step(v, &v->forward, t, first_label(v, t), end_label(v, t));
        if (v->forward.turns && t % v->block == 0) keep(v, t);
    }
    int64_t last = v->T - 1;
    double *blank, *label = line_at(&v->forward, last, v->L, &blank), of_blank = blank[0], of_label = label[-1];
    int64_t state = of_blank > of_label ? 2 * v->L : 2 * v->L - 1;
    to->log_p = of_blank > of_label ? of_blank : of_label;
    if (to->log_p == -INFINITY) return CTCBIND_ROWS_OK;
    if (!v->forward.turns) follow(v, &v->forward, last, state, to->states);
    else
        for (int64_t first = last / v->block * v->block; first >= 0; first -= v->block) {
            if (ctcbind_sample_stopped(v->block * v->block)) return CTCBIND_ROWS_STOPPED;
            state = go_back(v, first, last, state, to->states);
            last = first;
        }
    measure(v, to);
    return CTCBIND_ROWS_OK;
}

static int align(const ctcbind_graph *g, ctcbind_alignment *to)
{
    int64_t T = g->rows.T, L = g->L, C = g->rows.C, most = most_classes(L, C);
    for (int64_t t = 0; t < to->T_out; t++) to->states[t] = to->classes[t] = -1;
    for (int64_t i = 0; i < to->L_out; i++) {
        to->starts[i] = to->ends[i] = -1;
        to->scores[i] = NAN;
    }
    to->log_p = -INFINITY;
    if (T < ctcbind_required(g)) return CTCBIND_ROWS_OK;
    if (T == 0) {
        to->log_p = 0;
        return CTCBIND_ROWS_OK;
    }
    double *scratch = malloc(ctcbind_align_bytes(T, L, C));
    if (!scratch) return CTCBIND_ROWS_NO_MEMORY;
    viterbi v = {.g = g, .T = T, .L = L, .block = block_of(T, L)};
    v.read = ctcbind_reader(&g->rows);
    v.sample = ctcbind_sample_of(&g->rows);
    v.norms = (ctcbind_norm *)scratch;
    v.room = scratch + 2 * T;
    v.scores = v.room + ctcbind_room_of_rows(C);
    v.skip = v.scores + most;
    v.forward = (lines){.at = v.skip + L + 1, .width = L, .turns = v.block < T};
    v.kept = v.forward.at + lines_size(L, v.block < T || T < 2 ? 2 : T, 0);
    v.again = v.kept + rows_kept(T, v.block) * (2 * L + 1);
    double *end = v.again + (v.block < T ? lines_size(block_width(v.block), v.block, 1) : 0);
    v.classes = (int32_t *)end;
    v.place = v.classes + most;
    v.K = ctcbind_list_classes(g, v.classes, v.place, v.place + L + 1);
    int status = run(&v, to);
    if (status == CTCBIND_ROWS_NAN) to->log_p = NAN;
    free(scratch);
    return status;
}

typedef struct batch {
    const ctcbind_graph *graphs;
    ctcbind_alignment *to;
} batch;

static void align_one(void *arg, int32_t n)
{
    const batch *b = arg;
    b->to[n].status = align(b->graphs + n, b->to + n);
}

int ctcbind_alignments(const ctcbind_graph *graphs, ctcbind_alignment *alignments, int32_t N, int32_t threads,
                       ctcbind_ask stop)
{
    batch b = {graphs, alignments};
    return ctcbind_each_sample(N, threads, stop, align_one, &b);
}
