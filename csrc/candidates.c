#include "candidates.h"

#include <string.h>

/* Of beams that are no wider, candidates are kept in order as they come. */
enum { NARROW = 80 };

static int better(const ctcbind_candidate *a, const ctcbind_candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->order < b->order);
}

/* Moves the best `width` of the candidates to the front, the worst of them last, by quickselect. Pivots are drawn, so
 * that no order of the scores is a bad one. */
static void select_best(ctcbind_candidates *c)
{
    ctcbind_candidate *all = c->found;
    int64_t first = 0, end = c->count, last = c->width - 1;
    uint32_t draw = 0x9e3779b9u;
    while (end - first > 1) {
        draw = draw * 1664525u + 1013904223u;
        ctcbind_candidate pivot = all[first + (int64_t)((uint64_t)draw * (uint64_t)(end - first) >> 32)];
        int64_t low = first, high = end - 1;
        while (low <= high) {
            while (better(&all[low], &pivot)) low++;
            while (better(&pivot, &all[high])) high--;
            if (low > high) break;
            ctcbind_candidate swapped = all[low];
            all[low++] = all[high];
            all[high--] = swapped;
        }
        if (last <= high) end = high + 1;
        else if (last >= low) first = low;
        else break;
    }
}

/* Leaves the best `width` of the candidates: the next has to exceed the worst of them. */
static void raise_bar(ctcbind_candidates *c)
{
    int64_t width = c->width;
    select_best(c);
    c->bar = c->found[width - 1].score;
    c->count = width;
    c->full = 2 * width;
}

static void insert(ctcbind_candidates *c, const ctcbind_candidate *one)
{
    int64_t width = c->width, at = c->count < width ? c->count++ : width - 1;
    for (; at && better(one, &c->found[at - 1]); at--) c->found[at] = c->found[at - 1];
    c->found[at] = *one;
    if (c->count == width) c->bar = c->found[width - 1].score;
}

void ctcbind_take_candidate(ctcbind_candidates *c, double score, double lm, int32_t slot, int32_t label)
{
    ctcbind_candidate one = {score, lm, slot, label, c->come++};
    if (c->width <= NARROW) insert(c, &one);
    else {
        c->found[c->count++] = one;
        if (c->count == c->full) raise_bar(c);
    }
}

const ctcbind_candidate *ctcbind_candidates_in_order(ctcbind_candidates *c)
{
    enum { RUN = 8 };
    if (c->count > c->width) raise_bar(c);
    ctcbind_candidate *from = c->found, *to = c->found + c->width;
    int64_t count = c->count;
    if (c->width <= NARROW) return from;
    for (int64_t first = 0; first < count; first += RUN)
        for (int64_t i = first + 1; i < count && i < first + RUN; i++) {
            ctcbind_candidate one = from[i];
            int64_t at = i;
            for (; at > first && better(&one, &from[at - 1]); at--) from[at] = from[at - 1];
            from[at] = one;
        }
    for (int64_t run = RUN; run < count; run *= 2) {
        if (ctcbind_candidates_stopped(c, (int32_t)count)) return NULL;
        for (int64_t first = 0; first < count; first += 2 * run) {
            int64_t middle = first + run < count ? first + run : count;
            int64_t end = middle + run < count ? middle + run : count;
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
        ctcbind_candidate *merged = to;
        to = from;
        from = merged;
    }
    return from;
}
