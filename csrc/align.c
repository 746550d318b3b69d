/* Where a table of choices is large, the scores are kept at every `block` frames only. Going back, a block is computed
 * again with its choices written down; a path moves up by two states a frame at most, so a block of B frames that ends
 * in state s needs the 2B + 1 states up to s, and not all S. */
#include "align.h"

#include <stdlib.h>

#include "kernel.h"
#include "size.h"
#include "trellis.h"

enum { CHUNK = 512 }; /* labels whose emissions are gathered at a time */

static int64_t block_of(int64_t T, int64_t L)
{
    if (T * (L + 2) <= 1 << 19) return T; /* a table of choices for all of it is small, and nothing is done twice */
    /* T/B rows of S doubles and 2B^2 choices are least near B^3 = 2TS; a wide band costs time, so stay below S/32 */
    int64_t S = 2 * L + 1, B = 64;
    while (B < S / 32 && B * B * B < 2 * T * S) B += 64;
    return B < T ? B : T;
}

typedef struct viterbi {
    const ctcbind_graph *g;
    int64_t T, L, K, block; /* K: the classes that states have, each once */
    ctc_sample sample;      /* as whose rows the kernel reads those of g */
    ctc_row read;
    ctcbind_norm *norms;    /* T */
    double *room;           /* C: for the kernel */
    double *scores;         /* K: of one frame */
    int32_t *classes;       /* K */
    int32_t *place;         /* L + 1: of each label and of the blank, which of the K classes */
    double *skip;           /* L: 0 where the label may follow the one before it directly, else -inf */
    double *label[2];       /* L + 1 each, behind one -inf that stands for what is before the first label */
    double *blank[2];       /* L + 1 each */
    double *kept;           /* rows of L labels and L + 1 blanks: after frame 0, block, 2 block, ... */
    unsigned char *choices; /* block rows of 2 * width: blanks, labels */
    int64_t width;
} viterbi;

static int64_t rows_kept(int64_t T, int64_t block) { return block < T ? (T - 1) / block + 1 : 0; }
static int64_t most_classes(int64_t L, int64_t C) { return L + 1 < C ? L + 1 : C; }
static int64_t width_of(int64_t L, int64_t block) { return (block < L ? block : L) + 2; }

size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C)
{
    int64_t block = block_of(T, L), most = most_classes(L, C);
    int64_t doubles = 2 * T + C + most + L + 2 * (2 * L + 3) + rows_kept(T, block) * (2 * L + 1);
    return ctcbind_size((uint64_t)doubles * sizeof(double) + (uint64_t)(most + L + 1 + C) * sizeof(int32_t) +
                        (uint64_t)(block * 2 * width_of(L, block)));
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

static int normalise(viterbi *v, int64_t t)
{
    ctc_best best;
    v->read(&v->sample, t, v->room, &best);
    return ctcbind_norm_of(&best, v->norms + t);
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

static void start(viterbi *v, double *label, double *blank)
{
    for (int64_t i = -1; i <= v->L; i++) label[i] = -INFINITY;
    for (int64_t i = 0; i <= v->L; i++) blank[i] = -INFINITY;
    blank[0] = silence_score(v) + ctcbind_bonus_at(v->g, 0, 0);
    if (v->L) label[0] = v->scores[v->place[0]] + ctcbind_bonus_at(v->g, 0, 1);
}

/* Frame t of the labels from..to - 1 and the blanks beside them, the blank after `to - 1` where it is the last. */
static void step(const viterbi *v, int64_t t, int64_t from, int64_t to, int now)
{
    double emit[CHUNK], stay = v->g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0;
    const double *label = v->label[now], *blank = v->blank[now];
    double *next_label = v->label[!now], *next_blank = v->blank[!now];
    double silence = silence_score(v);
    for (int64_t at = from; at < to; at += CHUNK) {
        int64_t count = to - at < CHUNK ? to - at : CHUNK;
        gather(v, t, at, count, emit);
        advance(label + at, blank + at, v->skip + at, emit, silence, stay, count, next_label + at, next_blank + at);
        if (v->g->bonus)
            for (int64_t i = at; i < at + count; i++) next_blank[i] += ctcbind_bonus_at(v->g, t, 2 * i);
    }
    if (to == v->L) {
        double before = label[v->L - 1], same = blank[v->L];
        next_blank[v->L] = (before > same ? before : same) + silence;
        if (v->g->bonus) next_blank[v->L] += ctcbind_bonus_at(v->g, t, 2 * v->L);
    }
}

static void keep(viterbi *v, int64_t t, int now)
{
    double *to = v->kept + t / v->block * (2 * v->L + 1);
    memcpy(to, v->label[now], (size_t)v->L * sizeof *to);
    memcpy(to + v->L, v->blank[now], (size_t)(v->L + 1) * sizeof *to);
}

CTCBIND_CLONES static void compare(const double *restrict label, const double *restrict blank,
                                   const double *restrict skip, double stay, int64_t count,
                                   unsigned char *restrict of_label, unsigned char *restrict of_blank)
{
    for (int64_t i = 0; i < count; i++) {
        double before = label[i - 1], same = label[i] + stay, from = blank[i], over = before + skip[i];
        double best = from > same ? from : same;
        unsigned char choice = from > same;
        of_label[i] = over > best ? 2 : choice;
        of_blank[i] = before > from;
    }
}

/* Writes down how the best path comes into each blank and label of from..to - 1 (and the last blank) from frame
 * `now`; the first place of the row is label `lowest`. */
static void choose(const viterbi *v, int64_t from, int64_t to, int64_t lowest, int now, unsigned char *row)
{
    const double *label = v->label[now], *blank = v->blank[now];
    double stay = v->g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0;
    unsigned char *of_blank = row + from - lowest, *of_label = of_blank + v->width;
    compare(label + from, blank + from, v->skip + from, stay, to - from, of_label, of_blank);
    if (to == v->L) of_blank[to - from] = label[v->L - 1] > blank[v->L];
}

static int64_t follow(const viterbi *v, int64_t first, int64_t last, int64_t state, int64_t lowest, int32_t *states)
{
    for (int64_t t = last; t > first; t--) {
        const unsigned char *choices = v->choices + (t - first - 1) * 2 * v->width;
        states[t] = (int32_t)state;
        state -= choices[(state & 1 ? v->width : 0) + state / 2 - lowest];
    }
    states[first] = (int32_t)state;
    return state;
}

/* Follows the path back from `state` at frame `last` to frame `first`, a frame that is kept. Returns the state
 * there. */
static int64_t go_back(viterbi *v, int64_t first, int64_t last, int64_t state, int32_t *states)
{
    const double *kept = v->kept + first / v->block * (2 * v->L + 1);
    int64_t lowest = state / 2 - (last - first), end = state / 2 + 1 < v->L ? state / 2 + 1 : v->L;
    int now = 0;
    if (lowest < 0) lowest = 0;
    /* one more label is read below the lowest; what it holds has no effect */
    memcpy(v->label[0] + lowest, kept + lowest, (size_t)(end - lowest) * sizeof *kept);
    memcpy(v->blank[0] + lowest, kept + v->L + lowest, (size_t)(end - lowest + (end == v->L)) * sizeof *kept);
    for (int64_t t = first + 1; t <= last; t++) {
        choose(v, lowest, end, lowest, now, v->choices + (t - first - 1) * 2 * v->width);
        if (t == last) break;
        read_scores(v, t);
        step(v, t, lowest, end, now);
        now = !now;
    }
    return follow(v, first, last, state, lowest, states);
}

/* The first and last frame of each label, and the mean of its ln y. */
static void measure(viterbi *v, ctcbind_alignment *to)
{
    for (int64_t t = 0; t < v->T; t++) {
        int32_t i = to->states[t] / 2;
        if (!(to->states[t] & 1)) continue;
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
    int now = 0;
    for (int64_t i = 0; i < v->L; i++) v->skip[i] = i && ctcbind_skips(v->g, 2 * i + 1) ? 0 : -INFINITY;
    for (int64_t t = 0; t < v->T; t++) {
        if (ctcbind_sample_stopped(v->L + v->g->rows.C)) return CTCBIND_ROWS_STOPPED;
        if (!normalise(v, t)) return CTCBIND_ROWS_NAN;
        read_scores(v, t);
        if (t == 0) {
            start(v, v->label[1], v->blank[1]);
            start(v, v->label[0], v->blank[0]);
        } else {
            int64_t from = first_label(v, t), end = end_label(v, t);
            if (v->block == v->T) choose(v, from, end, 0, now, v->choices + (t - 1) * 2 * v->width);
            step(v, t, from, end, now);
            now = !now;
        }
        if (v->block < v->T && t % v->block == 0) keep(v, t, now);
    }
    double of_blank = v->blank[now][v->L], of_label = v->label[now][v->L - 1];
    int64_t state = of_blank > of_label ? 2 * v->L : 2 * v->L - 1, last = v->T - 1;
    to->log_p = of_blank > of_label ? of_blank : of_label;
    if (to->log_p == -INFINITY) return CTCBIND_ROWS_OK;
    if (v->block == v->T) follow(v, 0, last, state, 0, to->states);
    else
        for (int64_t first = last / v->block * v->block; first >= 0; first -= v->block) {
            if (ctcbind_sample_stopped(v->block * v->width)) return CTCBIND_ROWS_STOPPED;
            state = go_back(v, first, last, state, to->states);
            last = first;
        }
    measure(v, to);
    return CTCBIND_ROWS_OK;
}

static int align(const ctcbind_graph *g, ctcbind_alignment *to)
{
    int64_t T = g->rows.T, L = g->L, C = g->rows.C, most = most_classes(L, C);
    for (int64_t t = 0; t < T; t++) to->states[t] = -1;
    for (int64_t i = 0; i < L; i++) {
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
    v.width = width_of(L, v.block);
    v.read = ctcbind_reader(&g->rows);
    v.sample = ctcbind_sample_of(&g->rows);
    v.norms = (ctcbind_norm *)scratch;
    v.room = scratch + 2 * T;
    v.scores = v.room + C;
    v.skip = v.scores + most;
    v.label[0] = v.skip + L + 1;
    v.label[1] = v.label[0] + L + 2;
    v.blank[0] = v.label[1] + L + 1;
    v.blank[1] = v.blank[0] + L + 1;
    v.kept = v.blank[1] + L + 1;
    v.classes = (int32_t *)(v.kept + rows_kept(T, v.block) * (2 * L + 1));
    v.place = v.classes + most;
    v.choices = (unsigned char *)(v.place + L + 1 + C);
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
