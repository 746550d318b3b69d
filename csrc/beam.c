/* Prefix beam search in log space.
 *
 * Prefixes are nodes of a tree. Each frame turns a beam of at most `width` nodes into the next one. A prefix that
 * stays gathers its own paths and those of its parent, where the parent is in the beam; a new prefix has one
 * source only, so that its score is a sum of two numbers. Beams are kept in order of their scores and classes are
 * taken from a heap in order of theirs: the pair (i, k) is behind all pairs (i' <= i, k' <= k), and about
 * width * ln(width) of the width * C candidates are looked at. With a language model all are. The best of them are
 * kept in order where the beam is narrow; else up to 2 * width are, of which the worse half goes each time. */
#include "decode.h"

#include <stdlib.h>

#include "size.h"

enum { NONE = -1 };

/* So many candidates are looked at before it is asked whether to stop: a frame of a wide beam may take seconds. */
enum { BETWEEN = 1024 };

typedef struct node {
    int32_t parent, label, length;
    int32_t next;                /* in the list of its bucket */
    int32_t uses;                /* children, and 1 while in the beam: freed at 0 */
    int32_t slot;                /* in the beam; NONE outside */
    double *scores;              /* what lm said of each extension, NaN: not asked yet; NULL outside the beam */
} node;

typedef struct beam {
    int32_t node;
    double blank, label;         /* ln p of the paths that end in a blank, in the last label */
    double total;                /* of both */
    double lm, score;            /* score = total + lm, which orders the beam */
} beam;

typedef struct candidate {
    double score, lm;
    int32_t slot, label;         /* label NONE: the beam in this slot stays */
    int32_t order;               /* the first come wins a tie */
} candidate;

typedef struct search {
    const ctcbind_rows *rows;
    const ctcbind_beam_options *options;
    node *nodes;
    int32_t room, used, unused;  /* unused: a list of freed nodes by `next` */
    int32_t *buckets;            /* `room` lists of nodes, by parent and label: a prefix may have as many children as
                                    the beam is wide */
    beam *now, *then;
    int32_t count, looked_at;    /* looked_at: candidates, since it was asked whether to stop */
    candidate *found;            /* room for 2 * width; the best of them are the next beam */
    int64_t found_count, full;   /* with `full` of them the bar is raised: width at first, then 2 * width */
    double bar;                  /* the score that the next candidate has to exceed */
    int32_t come;
    double *row;
    int32_t *classes;            /* the first `sorted` in order, then a heap with the best on top */
    int32_t sorted, heap_size;
    unsigned char *taken;        /* width * C: extensions that are in the beam already */
    int32_t *prefix;             /* that lm was asked about last, and the label at its end */
    int32_t prefix_length, prefix_room;
} search;

/* --- the tree ------------------------------------------------------------------------------------------------ */

/* ln(e^a + e^b), one at a time: below a gap of 38 the smaller is under half a unit in the last place. */
static double add_logs(double a, double b)
{
    double top = a > b ? a : b, gap = (a > b ? b : a) - top;
    return gap >= -38 ? top + log1p(exp(gap)) : top;
}

/* `room` is a power of two. */
static int32_t *bucket_of(const search *s, int32_t parent, int32_t label)
{
    uint64_t key = (uint64_t)(uint32_t)parent << 32 | (uint32_t)label;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio: both count in the bits from 32 on */
    return &s->buckets[key >> 32 & ((uint32_t)s->room - 1)];
}

static void put_in(search *s, int32_t at)
{
    node *one = &s->nodes[at];
    int32_t *bucket = bucket_of(s, one->parent, one->label);
    one->next = *bucket;
    *bucket = at;
}

static void take_out(search *s, int32_t at)
{
    const node *one = &s->nodes[at];
    int32_t *from = bucket_of(s, one->parent, one->label);
    while (*from != at) from = &s->nodes[*from].next;
    *from = one->next;
}

/* Where all nodes are in use, there is room for twice as many; 0 where there is none. */
static int grow(search *s)
{
    if (s->room > INT32_MAX / 2) return 0;
    int32_t room = s->room ? 2 * s->room : 256;
    node *nodes = realloc(s->nodes, ctcbind_size((uint64_t)room * sizeof *nodes));
    if (!nodes) return 0;
    s->nodes = nodes;
    int32_t *buckets = realloc(s->buckets, (size_t)room * sizeof *buckets);
    if (!buckets) return 0;
    s->buckets = buckets;
    s->room = room;
    for (int32_t i = 0; i < room; i++) buckets[i] = NONE;
    for (int32_t at = 0; at < s->used; at++) put_in(s, at);
    return 1;
}

static int32_t new_node(search *s, int32_t parent, int32_t label)
{
    int32_t at = s->unused;
    if (at != NONE) s->unused = s->nodes[at].next;
    else if (s->used == s->room && !grow(s)) return NONE;
    else at = s->used++;
    s->nodes[at] = (node){parent, label, 0, NONE, 0, NONE, NULL};
    if (parent != NONE) {
        s->nodes[at].length = s->nodes[parent].length + 1;
        s->nodes[parent].uses++;
    }
    put_in(s, at);
    return at;
}

static int32_t child_of(search *s, int32_t parent, int32_t label)
{
    for (int32_t at = *bucket_of(s, parent, label); at != NONE; at = s->nodes[at].next)
        if (s->nodes[at].parent == parent && s->nodes[at].label == label) return at;
    return new_node(s, parent, label);
}

static void release(search *s, int32_t at)
{
    while (at != NONE && --s->nodes[at].uses == 0) {
        node *one = &s->nodes[at];
        int32_t parent = one->parent;
        take_out(s, at);
        one->next = s->unused;
        s->unused = at;
        at = parent;
    }
}

static void write_prefix(const search *s, int32_t at, int32_t *labels)
{
    for (int32_t i = s->nodes[at].length; i-- > 0; at = s->nodes[at].parent) labels[i] = s->nodes[at].label;
}

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

static void begin_classes(search *s)
{
    int32_t count = 0;
    for (int32_t c = 0; c < s->rows->C; c++)
        if (c != s->options->blank && s->row[c] > -INFINITY && s->row[c] >= s->options->log_prune)
            s->classes[count++] = c;
    s->sorted = 0;
    s->heap_size = count;
    for (int32_t at = count / 2; at-- > 0;) sink_class(s, s->classes, count, at);
}

/* --- the best candidates ------------------------------------------------------------------------------------- */

/* Of beams that are no wider, candidates are kept in order as they come. */
enum { NARROW = 80 };

static int stopped(search *s, int32_t more)
{
    if ((s->looked_at += more) < BETWEEN) return 0;
    s->looked_at = 0;
    return ctcbind_sample_stopped(64 * BETWEEN);
}

static int better(const candidate *a, const candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->order < b->order);
}

/* Moves the best `width` of the candidates to the front, the worst of them last, by quickselect. Pivots are drawn, so
 * that no order of the scores is a bad one. */
static void select_best(search *s)
{
    candidate *all = s->found;
    int64_t first = 0, end = s->found_count, last = s->options->width - 1;
    uint32_t draw = 0x9e3779b9u;
    while (end - first > 1) {
        draw = draw * 1664525u + 1013904223u;
        candidate pivot = all[first + (int64_t)((uint64_t)draw * (uint64_t)(end - first) >> 32)];
        int64_t low = first, high = end - 1;
        while (low <= high) {
            while (better(&all[low], &pivot)) low++;
            while (better(&pivot, &all[high])) high--;
            if (low > high) break;
            candidate swapped = all[low];
            all[low++] = all[high];
            all[high--] = swapped;
        }
        if (last <= high) end = high + 1;
        else if (last >= low) first = low;
        else break;
    }
}

/* Leaves the best `width` of the candidates: the next has to exceed the worst of them. */
static void raise_bar(search *s)
{
    int64_t width = s->options->width;
    select_best(s);
    s->bar = s->found[width - 1].score;
    s->found_count = width;
    s->full = 2 * width;
}

static void insert(search *s, const candidate *one)
{
    int64_t width = s->options->width, at = s->found_count < width ? s->found_count++ : width - 1;
    for (; at && better(one, &s->found[at - 1]); at--) s->found[at] = s->found[at - 1];
    s->found[at] = *one;
    if (s->found_count == width) s->bar = s->found[width - 1].score;
}

static void offer(search *s, double score, double lm, int32_t slot, int32_t label)
{
    if (!(score > s->bar)) return;
    candidate one = {score, lm, slot, label, s->come++};
    if (s->options->width <= NARROW) insert(s, &one);
    else {
        s->found[s->found_count++] = one;
        if (s->found_count == s->full) raise_bar(s);
    }
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
    int32_t length = s->nodes[at].length, same = length < s->prefix_length ? length : s->prefix_length;
    s->prefix_length = length;
    for (int32_t i = length; i-- > 0; at = s->nodes[at].parent) {
        if (i < same && s->prefix[i] != s->nodes[at].label) same = i;
        s->prefix[i] = s->nodes[at].label;
    }
    return same;
}

/* ln p of the paths of a beam that another label `label` may follow as a label of its own. */
static double open_to(const search *s, const beam *from, int32_t label)
{
    return !s->options->simple && s->nodes[from->node].label == label ? from->blank : from->total;
}

static int offer_stays(search *s)
{
    const double *row = s->row;
    for (int32_t i = 0; i < s->count; i++) {
        if (stopped(s, 1)) return CTCBIND_ROWS_STOPPED;
        beam *old = &s->now[i], *one = &s->then[i];
        const node *own = &s->nodes[old->node];
        *one = *old;
        one->blank = old->total + row[s->options->blank];
        one->label = -INFINITY;
        if (own->label != NONE) {
            if (!s->options->simple) one->label = old->label + row[own->label];
            int32_t parent = own->parent == NONE ? NONE : s->nodes[own->parent].slot;
            if (parent != NONE) {
                s->taken[(size_t)parent * s->rows->C + own->label] = 1;
                one->label = add_logs(one->label, open_to(s, &s->now[parent], own->label) + row[own->label]);
            }
        }
        one->total = add_logs(one->blank, one->label);
        one->score = one->total + one->lm;
        offer(s, one->score, one->lm, i, NONE);
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
            if (!(from->total + s->row[label] > s->bar)) {
                if (k == 0) return CTCBIND_ROWS_OK; /* the beams that follow are no better */
                break;
            }
            if (!s->taken[(size_t)i * s->rows->C + label])
                offer(s, open_to(s, from, label) + s->row[label], 0, i, label);
        }
        if (stopped(s, k)) return CTCBIND_ROWS_STOPPED;
    }
    return CTCBIND_ROWS_OK;
}

static int offer_extensions_with_lm(search *s)
{
    for (int32_t i = 0; i < s->count; i++) {
        const beam *from = &s->now[i];
        node *own = &s->nodes[from->node];
        if (own->length >= s->prefix_room) {
            int32_t room = 2 * own->length + 64;
            int32_t *prefix = realloc(s->prefix, (size_t)room * sizeof *prefix);
            if (!prefix) return CTCBIND_ROWS_NO_MEMORY;
            s->prefix = prefix;
            s->prefix_room = room;
        }
        if (!own->scores) {
            if (!(own->scores = malloc((size_t)s->rows->C * sizeof *own->scores))) return CTCBIND_ROWS_NO_MEMORY;
            for (int32_t c = 0; c < s->rows->C; c++) own->scores[c] = NAN;
        }
        for (int32_t k = 0, same = NONE;; k++) {
            int32_t label = class_at(s, k);
            if (label == NONE) break;
            if (stopped(s, 1)) return CTCBIND_ROWS_STOPPED;
            double acoustic = open_to(s, from, label) + s->row[label];
            if (s->taken[(size_t)i * s->rows->C + label] || acoustic == -INFINITY) continue;
            if (isnan(own->scores[label])) {
                same = same == NONE ? turn_to(s, from->node) : own->length;
                s->prefix[own->length] = label;
                if (!ask(s, own->length + 1, same, &own->scores[label])) return CTCBIND_ROWS_STOPPED;
            }
            offer(s, acoustic + own->scores[label], own->scores[label], i, label);
        }
    }
    return CTCBIND_ROWS_OK;
}

/* The candidates in order, which are no more than `width`: by merging, with what is behind them as room. NULL where the
 * search is stopped. */
static const candidate *in_order(search *s)
{
    enum { RUN = 8 };
    candidate *from = s->found, *to = s->found + s->options->width;
    int64_t count = s->found_count;
    if (s->options->width <= NARROW) return from;
    for (int64_t first = 0; first < count; first += RUN)
        for (int64_t i = first + 1; i < count && i < first + RUN; i++) {
            candidate one = from[i];
            int64_t at = i;
            for (; at > first && better(&one, &from[at - 1]); at--) from[at] = from[at - 1];
            from[at] = one;
        }
    for (int64_t run = RUN; run < count; run *= 2) {
        if (stopped(s, (int32_t)count)) return NULL;
        for (int64_t first = 0; first < count; first += 2 * run) {
            int64_t middle = first + run < count ? first + run : count, end = middle + run < count ? middle + run : count;
            int64_t a = first, b = middle, k = first;
            while (a < middle && b < end) {
                int second = better(&from[b], &from[a]);
                to[k++] = from[second ? b : a];
                a += !second;
                b += second;
            }
            memcpy(to + k, from + a, (size_t)(middle - a) * sizeof *to);
            memcpy(to + k, from + b, (size_t)(end - b) * sizeof *to);
        }
        candidate *merged = to;
        to = from;
        from = merged;
    }
    return from;
}

/* The chosen candidates become the beam; nodes that lost their place go, with all that hung on them alone. */
static int turn_over(search *s)
{
    if (s->found_count > s->options->width) raise_bar(s);
    const candidate *chosen = in_order(s);
    if (!chosen) return CTCBIND_ROWS_STOPPED;
    for (int32_t i = 0; i < s->count; i++) {
        const node *own = &s->nodes[s->now[i].node];
        if (own->parent != NONE && s->nodes[own->parent].slot != NONE)
            s->taken[(size_t)s->nodes[own->parent].slot * s->rows->C + own->label] = 0;
    }
    for (int32_t i = 0; i < s->count; i++) s->nodes[s->now[i].node].slot = NONE;
    beam *next = s->then + s->options->width;
    for (int32_t i = 0; i < s->found_count; i++) {
        const candidate *one = &chosen[i];
        if (stopped(s, 1)) return CTCBIND_ROWS_STOPPED;
        if (one->label == NONE) next[i] = s->then[one->slot];
        else {
            int32_t at = child_of(s, s->now[one->slot].node, one->label);
            if (at == NONE) return CTCBIND_ROWS_NO_MEMORY;
            double total = one->score - one->lm;
            if (one->lm != 0) total = open_to(s, &s->now[one->slot], one->label) + s->row[one->label];
            next[i] = (beam){at, -INFINITY, total, total, one->lm, one->score};
        }
        s->nodes[next[i].node].slot = i;
        s->nodes[next[i].node].uses++;
    }
    for (int32_t i = 0; i < s->count; i++) {
        int32_t at = s->now[i].node;
        if (s->nodes[at].slot == NONE && s->nodes[at].scores) {
            free(s->nodes[at].scores);
            s->nodes[at].scores = NULL;
        }
        release(s, at);
    }
    s->count = (int32_t)s->found_count;
    memcpy(s->now, next, (size_t)s->count * sizeof *next);
    return CTCBIND_ROWS_OK;
}

static int run(search *s, ctcbind_beams *beams)
{
    int32_t root = new_node(s, NONE, NONE);
    if (root == NONE) return CTCBIND_ROWS_NO_MEMORY;
    s->nodes[root].uses = 1;
    s->nodes[root].slot = 0;
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
        s->found_count = s->come = 0;
        s->full = s->options->width;
        s->bar = -INFINITY;
        begin_classes(s);
        int status = offer_stays(s);
        if (status == CTCBIND_ROWS_OK) status = s->options->lm ? offer_extensions_with_lm(s) : offer_extensions(s);
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
        total += s->nodes[s->now[count].node].length;
    beams->lengths = malloc(((size_t)count + 1) * sizeof *beams->lengths);
    beams->labels = malloc(((size_t)total + 1) * sizeof *beams->labels);
    beams->log_p = malloc(((size_t)count + 1) * sizeof *beams->log_p);
    beams->score = malloc(((size_t)count + 1) * sizeof *beams->score);
    if (!beams->lengths || !beams->labels || !beams->log_p || !beams->score) return CTCBIND_ROWS_NO_MEMORY;
    int32_t *labels = beams->labels;
    for (int32_t i = 0; i < count; i++) {
        const beam *one = &s->now[i];
        beams->lengths[i] = s->nodes[one->node].length;
        write_prefix(s, one->node, labels);
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
    search s = {.rows = rows, .options = options, .unused = NONE};
    int status = CTCBIND_ROWS_NO_MEMORY;
    memset(beams, 0, sizeof *beams);
    s.now = malloc(ctcbind_size(width * sizeof *s.now));
    s.then = malloc(ctcbind_size(2 * width * sizeof *s.then));
    s.found = malloc(ctcbind_size(2 * width * sizeof *s.found));
    s.row = malloc(ctcbind_size(C * sizeof *s.row));
    s.classes = malloc(ctcbind_size(C * sizeof *s.classes));
    s.taken = calloc(ctcbind_size(width * C), 1);
    s.prefix = calloc(1, sizeof *s.prefix);
    s.prefix_room = 1;
    if (s.now && s.then && s.found && s.row && s.classes && s.taken && s.prefix) {
        status = run(&s, beams);
        if (status == CTCBIND_ROWS_OK) status = write_beams(&s, beams);
    }
    for (int32_t i = 0; i < s.used && options->lm; i++) free(s.nodes[i].scores);
    free(s.now);
    free(s.then);
    free(s.found);
    free(s.row);
    free(s.classes);
    free(s.taken);
    free(s.prefix);
    free(s.nodes);
    free(s.buckets);
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

int ctcbind_beam_searches(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams, int32_t N,
                          int32_t threads, ctcbind_ask stop)
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
