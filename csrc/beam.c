/* Prefix beam search in log space.
 *
 * Prefixes are nodes of a tree. Each frame turns a beam of at most `width` nodes into the next one. A prefix that
 * stays gathers its own paths and those of its parent, where the parent is in the beam; a new prefix has one
 * source only, so that its score is a sum of two numbers. Beams are kept in order of their scores and classes are
 * taken from a heap in order of theirs: the pair (i, k) is behind all pairs (i' <= i, k' <= k), and about
 * width * ln(width) of the width * C candidates are looked at. With a language model all are. */
#include "decode.h"

#include <float.h>
#include <stdlib.h>

#include "candidates.h"
#include "prefixes.h"
#include "size.h"

typedef struct beam {
    int32_t node;
    double blank, label;         /* ln p of the paths that end in a blank, in the last label */
    double total;                /* of both */
    double lm, score;            /* score = total + lm, which orders the beam */
} beam;

typedef struct search {
    const ctcbind_rows *rows;
    const ctcbind_beam_options *options;
    ctcbind_prefixes tree;
    beam *now, *then;
    int32_t count;
    ctcbind_candidates candidates;
    double *row;
    int32_t *classes;            /* the first `sorted` in order, then a heap with the best on top */
    int32_t sorted, heap_size;
    unsigned char *taken;        /* width * C: extensions that are in the beam already */
    int32_t *prefix;             /* that lm was asked about last, and the label at its end */
    int32_t prefix_length, prefix_room;
} search;

/* ln(e^a + e^b), one at a time: below a gap of 38 the smaller is under half a unit in the last place. */
static double add_logs(double a, double b)
{
    double top = a > b ? a : b, gap = (a > b ? b : a) - top;
    return gap >= -38 ? top + log1p(exp(gap)) : top;
}

static int with_lm(const ctcbind_beam_options *options) { return options->lm || options->lm_next; }

/* --- classes in order ---------------------------------------------------------------------------------------- */

static int better_class(const search *s, int32_t a, int32_t b)
{
    return s->row[a] > s->row[b] || (s->row[a] == s->row[b] && a < b);
}

static void sink_class(search *s, int32_t *heap, int32_t size, int32_t at)
{
    int32_t moved = heap[at];
    for (;;) {
        int32_t below = 2 * at + 1;
        if (below >= size) break;
        if (below + 1 < size && better_class(s, heap[below + 1], heap[below])) below++;
        if (!better_class(s, heap[below], moved)) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = moved;
}

/* Class number k in order of ln y; NONE past the last one that is not pruned. Taken classes move to the far end. */
static int32_t class_at(search *s, int32_t k)
{
    int32_t *heap = s->classes;
    int32_t last = s->sorted + s->heap_size - 1;
    while (k >= s->sorted && s->heap_size) {
        int32_t best = heap[0];
        heap[0] = heap[--s->heap_size];
        if (s->heap_size) sink_class(s, heap, s->heap_size, 0);
        heap[last - s->sorted++] = best;
    }
    return k < s->sorted ? heap[last - k] : NONE;
}

/* Without a language model the bar, as high as those that stay have raised it, leaves out most classes: what does not
 * reach it after the best prefix does so after none. */
static void begin_classes(search *s)
{
    int32_t count = 0;
    double bar = with_lm(s->options) ? -INFINITY : s->candidates.bar, best = s->now[0].total;
    for (int32_t c = 0; c < s->rows->C; c++) {
        s->classes[count] = c; /* without a branch, which nobody could foretell */
        count += (c != s->options->blank) & (s->row[c] > -INFINITY) & (s->row[c] >= s->options->log_prune) &
                 (best + s->row[c] > bar);
    }
    s->sorted = 0;
    s->heap_size = count;
    for (int32_t at = count / 2; at-- > 0;) sink_class(s, s->classes, count, at);
}

/* --- one frame ----------------------------------------------------------------------------------------------- */

static int ask(search *s, int32_t length, int32_t same, double *answer)
{
    *answer = s->options->lm(s->options->context, s->prefix, length, same);
    return !isnan(*answer);
}

/* Writes the prefix about whose extensions lm is asked next; of its labels so many as are returned, at the front, are
 * those of the one before. */
static int32_t turn_to(search *s, int32_t at)
{
    int32_t length = s->tree.nodes[at].length, same = length < s->prefix_length ? length : s->prefix_length;
    s->prefix_length = length;
    for (int32_t i = length; i-- > 0; at = s->tree.nodes[at].parent) {
        if (i < same && s->prefix[i] != s->tree.nodes[at].label) same = i;
        s->prefix[i] = s->tree.nodes[at].label;
    }
    return same;
}

/* ln p of the paths of a beam that another label `label` may follow as a label of its own. */
static double open_to(const search *s, const beam *from, int32_t label)
{
    return !s->options->simple && s->tree.nodes[from->node].label == label ? from->blank : from->total;
}

static int offer_stays(search *s)
{
    const double *row = s->row;
    for (int32_t i = 0; i < s->count; i++) {
        if (ctcbind_candidates_stopped(&s->candidates, 1)) return CTCBIND_ROWS_STOPPED;
        beam *old = &s->now[i], *one = &s->then[i];
        const ctcbind_prefix *own = &s->tree.nodes[old->node];
        *one = *old;
        one->blank = old->total + row[s->options->blank];
        one->label = -INFINITY;
        if (own->label != NONE) {
            if (!s->options->simple) one->label = old->label + row[own->label];
            int32_t parent = own->parent == NONE ? NONE : s->tree.nodes[own->parent].slot;
            if (parent != NONE) {
                s->taken[(size_t)parent * s->rows->C + own->label] = 1;
                one->label = add_logs(one->label, open_to(s, &s->now[parent], own->label) + row[own->label]);
            }
        }
        one->total = add_logs(one->blank, one->label);
        one->score = one->total + one->lm;
        ctcbind_offer(&s->candidates, one->score, one->lm, i, NONE);
    }
    return CTCBIND_ROWS_OK;
}

static int offer_extensions(search *s)
{
    for (int32_t i = 0; i < s->count; i++) {
        const beam *from = &s->now[i];
        int32_t k = 0;
        for (;; k++) {
            int32_t label = class_at(s, k);
            if (label == NONE) break;
            if (!(from->total + s->row[label] > s->candidates.bar)) {
                if (k == 0) return CTCBIND_ROWS_OK; /* the beams that follow are no better */
                break;
            }
            if (!s->taken[(size_t)i * s->rows->C + label])
                ctcbind_offer(&s->candidates, open_to(s, from, label) + s->row[label], 0, i, label);
        }
        if (ctcbind_candidates_stopped(&s->candidates, k)) return CTCBIND_ROWS_STOPPED;
    }
    return CTCBIND_ROWS_OK;
}

/* Makes room for what lm is asked about the extensions of a prefix, and for what it says. */
static int begin_asking(search *s, ctcbind_prefix *own)
{
    if (own->length >= s->prefix_room) {
        int32_t room = 2 * own->length + 64;
        int32_t *prefix = realloc(s->prefix, (size_t)room * sizeof *prefix);
        if (!prefix) return 0;
        s->prefix = prefix;
        s->prefix_room = room;
    }
    if (own->scores) return 1;
    if (!(own->scores = malloc((size_t)s->rows->C * sizeof *own->scores))) return 0;
    for (int32_t c = 0; c < s->rows->C; c++) own->scores[c] = NAN;
    return 1;
}

/* Gives the prefixes of the beam that have none what lm_next says of their extensions: `said`, in order of the beam. */
static int take_scores(search *s, const double *said)
{
    int32_t C = s->rows->C;
    for (int32_t i = 0; i < s->count; i++) {
        ctcbind_prefix *own = &s->tree.nodes[s->now[i].node];
        if (own->scores) continue;
        if (!(own->scores = malloc((size_t)C * sizeof *own->scores))) return CTCBIND_ROWS_NO_MEMORY;
        for (int32_t c = 0; c < C; c++) own->scores[c] = fmin(s->now[i].lm + said[c], DBL_MAX);
        said += C;
    }
    return CTCBIND_ROWS_OK;
}

static int ask_next(search *s)
{
    int32_t count = 0;
    int64_t total = 0;
    for (int32_t i = 0; i < s->count; i++) {
        const ctcbind_prefix *own = &s->tree.nodes[s->now[i].node];
        if (own->scores) continue;
        count++;
        total += own->length;
    }
    if (!count || class_at(s, 0) == NONE) return CTCBIND_ROWS_OK;
    int32_t *lengths = malloc((size_t)count * sizeof *lengths);
    int32_t *labels = malloc(ctcbind_size(((uint64_t)total + 1) * sizeof *labels));
    double *said = malloc(ctcbind_size((uint64_t)count * (uint64_t)s->rows->C * sizeof *said));
    int status = CTCBIND_ROWS_NO_MEMORY;
    if (lengths && labels && said) {
        int32_t *length = lengths, *at = labels;
        for (int32_t i = 0; i < s->count; i++) {
            const ctcbind_prefix *own = &s->tree.nodes[s->now[i].node];
            if (own->scores) continue;
            ctcbind_prefix_write(&s->tree, s->now[i].node, at);
            at += own->length;
            *length++ = own->length;
        }
        int ended = s->options->lm_next(s->options->context, count, lengths, labels, said);
        status = ended ? CTCBIND_ROWS_STOPPED : take_scores(s, said);
    }
    free(lengths);
    free(labels);
    free(said);
    return status;
}

static int offer_extensions_with_lm(search *s)
{
    int status = s->options->lm_next ? ask_next(s) : CTCBIND_ROWS_OK;
    if (status != CTCBIND_ROWS_OK) return status;
    for (int32_t i = 0; i < s->count; i++) {
        const beam *from = &s->now[i];
        ctcbind_prefix *own = &s->tree.nodes[from->node];
        if (s->options->lm && !begin_asking(s, own)) return CTCBIND_ROWS_NO_MEMORY;
        for (int32_t k = 0, same = NONE;; k++) {
            int32_t label = class_at(s, k);
            if (label == NONE) break;
            if (ctcbind_candidates_stopped(&s->candidates, 1)) return CTCBIND_ROWS_STOPPED;
            double acoustic = open_to(s, from, label) + s->row[label];
            if (s->taken[(size_t)i * s->rows->C + label] || acoustic == -INFINITY) continue;
            if (isnan(own->scores[label])) {
                same = same == NONE ? turn_to(s, from->node) : own->length;
                s->prefix[own->length] = label;
                if (!ask(s, own->length + 1, same, &own->scores[label])) return CTCBIND_ROWS_STOPPED;
            }
            ctcbind_offer(&s->candidates, acoustic + own->scores[label], own->scores[label], i, label);
        }
    }
    return CTCBIND_ROWS_OK;
}

/* The chosen candidates become the beam; nodes that lost their place go, with all that hung on them alone. */
static int turn_over(search *s)
{
    const ctcbind_candidate *chosen = ctcbind_candidates_in_order(&s->candidates);
    if (!chosen) return CTCBIND_ROWS_STOPPED;
    for (int32_t i = 0; i < s->count; i++) {
        const ctcbind_prefix *own = &s->tree.nodes[s->now[i].node];
        if (own->parent != NONE && s->tree.nodes[own->parent].slot != NONE)
            s->taken[(size_t)s->tree.nodes[own->parent].slot * s->rows->C + own->label] = 0;
    }
    for (int32_t i = 0; i < s->count; i++) s->tree.nodes[s->now[i].node].slot = NONE;
    beam *next = s->then + s->options->width;
    for (int32_t i = 0; i < s->candidates.count; i++) {
        const ctcbind_candidate *one = &chosen[i];
        if (ctcbind_candidates_stopped(&s->candidates, 1)) return CTCBIND_ROWS_STOPPED;
        if (one->label == NONE) next[i] = s->then[one->slot];
        else {
            int32_t at = ctcbind_prefix_child(&s->tree, s->now[one->slot].node, one->label);
            if (at == NONE) return CTCBIND_ROWS_NO_MEMORY;
            double total = one->score - one->lm;
            if (one->lm != 0) total = open_to(s, &s->now[one->slot], one->label) + s->row[one->label];
            next[i] = (beam){at, -INFINITY, total, total, one->lm, one->score};
        }
        s->tree.nodes[next[i].node].slot = i;
        s->tree.nodes[next[i].node].uses++;
    }
    for (int32_t i = 0; i < s->count; i++) {
        int32_t at = s->now[i].node;
        if (s->tree.nodes[at].slot == NONE && s->tree.nodes[at].scores) {
            free(s->tree.nodes[at].scores);
            s->tree.nodes[at].scores = NULL;
        }
        ctcbind_prefix_release(&s->tree, at);
    }
    s->count = (int32_t)s->candidates.count;
    memcpy(s->now, next, (size_t)s->count * sizeof *next);
    return CTCBIND_ROWS_OK;
}

static int run(search *s, ctcbind_beams *beams)
{
    int32_t root = ctcbind_prefix_new(&s->tree, NONE, NONE);
    if (root == NONE) return CTCBIND_ROWS_NO_MEMORY;
    s->tree.nodes[root].uses = 1;
    s->tree.nodes[root].slot = 0;
    s->now[0] = (beam){root, 0, -INFINITY, 0, 0, 0};
    s->count = 1;
    if (s->options->lm && !ask(s, 0, 0, &s->now[0].lm)) return CTCBIND_ROWS_STOPPED;
    s->now[0].score = s->now[0].lm;
    for (int32_t t = 0; t < s->rows->T; t++) {
        ctcbind_norm norm;
        if (ctcbind_sample_stopped((int64_t)64 * s->count + s->rows->C)) return CTCBIND_ROWS_STOPPED;
        if (!ctcbind_log_softmax(s->rows, t, s->row, &norm)) {
            beams->bad_frame = t;
            return CTCBIND_ROWS_NAN;
        }
        ctcbind_candidates_begin(&s->candidates);
        int status = offer_stays(s);
        begin_classes(s);
        if (status == CTCBIND_ROWS_OK) status = with_lm(s->options) ? offer_extensions_with_lm(s) : offer_extensions(s);
        if (status == CTCBIND_ROWS_OK) status = turn_over(s);
        if (status != CTCBIND_ROWS_OK) return status;
    }
    return CTCBIND_ROWS_OK;
}

static int write_beams(const search *s, ctcbind_beams *beams)
{
    int32_t count = 0;
    int64_t total = 0;
    for (; count < s->count && count < s->options->n_best && s->now[count].score > -INFINITY; count++)
        total += s->tree.nodes[s->now[count].node].length;
    beams->lengths = malloc(((size_t)count + 1) * sizeof *beams->lengths);
    beams->labels = malloc(((size_t)total + 1) * sizeof *beams->labels);
    beams->log_p = malloc(((size_t)count + 1) * sizeof *beams->log_p);
    beams->score = malloc(((size_t)count + 1) * sizeof *beams->score);
    if (!beams->lengths || !beams->labels || !beams->log_p || !beams->score) return CTCBIND_ROWS_NO_MEMORY;
    int32_t *labels = beams->labels;
    for (int32_t i = 0; i < count; i++) {
        const beam *one = &s->now[i];
        beams->lengths[i] = s->tree.nodes[one->node].length;
        ctcbind_prefix_write(&s->tree, one->node, labels);
        labels += beams->lengths[i];
        beams->log_p[i] = one->total;
        beams->score[i] = one->score;
    }
    beams->count = count;
    beams->total = total;
    return CTCBIND_ROWS_OK;
}

int ctcbind_beam_search(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams)
{
    uint64_t width = (uint64_t)options->width, C = (uint64_t)rows->C;
    search s = {.rows = rows, .options = options, .tree.unused = NONE, .candidates.width = options->width};
    int status = CTCBIND_ROWS_NO_MEMORY;
    memset(beams, 0, sizeof *beams);
    s.now = malloc(ctcbind_size(width * sizeof *s.now));
    s.then = malloc(ctcbind_size(2 * width * sizeof *s.then));
    s.candidates.found = malloc(ctcbind_size(2 * width * sizeof *s.candidates.found));
    s.row = malloc(ctcbind_size(C * sizeof *s.row));
    s.classes = malloc(ctcbind_size(C * sizeof *s.classes));
    s.taken = calloc(ctcbind_size(width * C), 1);
    s.prefix = calloc(1, sizeof *s.prefix);
    s.prefix_room = 1;
    if (s.now && s.then && s.candidates.found && s.row && s.classes && s.taken && s.prefix) {
        status = run(&s, beams);
        if (status == CTCBIND_ROWS_OK) status = write_beams(&s, beams);
    }
    for (int32_t i = 0; i < s.tree.used && with_lm(options); i++) free(s.tree.nodes[i].scores);
    free(s.now);
    free(s.then);
    free(s.candidates.found);
    free(s.row);
    free(s.classes);
    free(s.taken);
    free(s.prefix);
    ctcbind_prefixes_free(&s.tree);
    return status;
}

typedef struct searches {
    const ctcbind_rows *rows;
    const ctcbind_beam_options *options;
    ctcbind_beams *beams;
    atomic_int failed; /* the first sample that did, of those known: what comes after it is not looked at */
} searches;

static void search_one(void *arg, int32_t n)
{
    searches *b = arg;
    int first = atomic_load_explicit(&b->failed, memory_order_relaxed);
    ctcbind_beams_free(b->beams + n); /* of a search that is done anew; zeros else */
    int status = n > first ? CTCBIND_ROWS_STOPPED : ctcbind_beam_search(b->rows + n, b->options, b->beams + n);
    b->beams[n].status = status;
    while (status != CTCBIND_ROWS_OK && n < first)
        if (atomic_compare_exchange_weak(&b->failed, &first, n)) break;
}

int ctcbind_beam_searches(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams,
                          int32_t N, int32_t threads, ctcbind_ask stop)
{
    searches b = {.rows = rows, .options = options, .beams = beams};
    atomic_init(&b.failed, N);
    return ctcbind_each_sample(N, threads, stop, search_one, &b);
}

void ctcbind_beams_free(ctcbind_beams *beams)
{
    free(beams->lengths);
    free(beams->labels);
    free(beams->log_p);
    free(beams->score);
    memset(beams, 0, sizeof *beams);
}
