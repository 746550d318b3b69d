#include "chain.h"

/* From the ends of the next frame, n + 1 labels and n + 1 blanks, those of this, and the moves between them. What is
 * passed alone compilers believe not to overlap, and make vectors of. */
CTCBIND_CLONES static void retreat_to_labels(const double *restrict labels, const double *restrict of_labels,
                                             const double *restrict skip, double stays, const double *restrict emits,
                                             const double *restrict of_emits, int64_t n, ctcbind_span span,
                                             double *restrict stay, double *restrict to_blank, double *restrict over,
                                             double *restrict to, double *restrict of)
{
    const double *blanks = labels + n + 1, *of_blanks = of_labels + n + 1;
    for (int64_t i = span.low; i < span.high; i++) {
        double same = of_labels[i] + stays, blank = of_blanks[i + 1], label = of_labels[i + 1] + skip[i + 1];
        double two = same > blank ? same : blank, top = two > label ? two : label, from = ctcbind_from(top);
        double a = labels[i] * ctcbind_power(same - from), b = blanks[i + 1] * ctcbind_power(blank - from);
        double c = labels[i + 1] * ctcbind_power(label - from), sum = a + b + c, share = 1 / (sum > 0 ? sum : 1);
        stay[i] = a * share;
        to_blank[i] = b * share;
        over[i] = c * share;
        of[i] = top + of_emits[i] + ctcbind_normalise(sum * emits[i], &to[i]);
    }
}

CTCBIND_CLONES static void retreat_to_blanks(const double *restrict labels, const double *restrict of_labels,
                                             double emit, double exponent, int64_t n, ctcbind_span span,
                                             double *restrict to_label, double *restrict wait, double *restrict to,
                                             double *restrict of)
{
    const double *blanks = labels + n + 1, *of_blanks = of_labels + n + 1;
    for (int64_t i = span.low; i < span.high; i++) {
        double label = of_labels[i], blank = of_blanks[i], top = label > blank ? label : blank;
        double from = ctcbind_from(top), a = labels[i] * ctcbind_power(label - from);
        double b = blanks[i] * ctcbind_power(blank - from), sum = a + b, share = 1 / (sum > 0 ? sum : 1);
        to_label[i] = a * share;
        wait[i] = b * share;
        of[i] = top + exponent + ctcbind_normalise(sum * emit, &to[i]);
    }
}

/* Below it a product with a sum of states may have no bits left. */
#define LEAST_PLAIN 0x1p-1000

/* Whether none is 0, or hardly more: then they do without exponents. */
CTCBIND_CLONES static int emit_plain(const double *restrict exps, const int32_t *restrict labels, ctcbind_span span,
                                     double *restrict emit)
{
    int64_t small = 0;
    for (int64_t i = span.low; i < span.high; i++) {
        emit[i] = exps[labels[i]];
        small += emit[i] < LEAST_PLAIN;
    }
    return small == 0;
}

CTCBIND_CLONES static void emit_split(const double *restrict scores, const int32_t *restrict labels, ctcbind_span span,
                                      double *restrict emit, double *restrict exponents)
{
    for (int64_t i = span.low; i < span.high; i++) exponents[i] = ctcbind_split(scores[labels[i]], &emit[i]);
}

int64_t ctcbind_chain_doubles(int64_t kept, int64_t L)
{
    int64_t n = L + 1;
    return kept * 5 * n + (n + 1) + 2 * 4 * (n + 1) + 2 * n;
}

void ctcbind_chain_open(ctcbind_chain *h, const ctcbind_graph *g, int64_t kept, double *room)
{
    int64_t n = (int64_t)g->L + 1;
    *h = (ctcbind_chain){.g = g, .T = g->rows.T, .L = g->L, .n = n, .kept = kept};
    h->moves = ctcbind_take(&room, kept * 5 * n);
    h->skip = ctcbind_take(&room, n + 1);
    for (int64_t i = 0; i <= n; i++) h->skip[i] = i < h->L && ctcbind_skips(g, 2 * i + 1) ? 0 : -INFINITY;
    h->ends = ctcbind_take_powers(&room, 2 * (n + 1));
    h->room = ctcbind_take_powers(&room, 2 * (n + 1));
    h->emit = ctcbind_take_powers(&room, n);
    h->ends.exponent[n + 1 + h->L] = 0; /* past the last frame all paths are in the last blank */
}

ctcbind_moves ctcbind_chain_moves(const ctcbind_chain *h, int64_t t)
{
    int64_t n = h->n;
    double *of = h->moves + (t + 1) % h->kept * 5 * n;
    return (ctcbind_moves){of, of + n, of + 2 * n, of + 3 * n, of + 4 * n};
}

/* What the states of a frame are emitted with: labels in h->emit, where label L, which is none, stays 0; the blank as
 * result. */
static double emissions(ctcbind_chain *h, ctcbind_span span, const double *scores, const double *exps, double *exponent)
{
    const ctcbind_graph *g = h->g;
    double blank = exps[g->blank];
    *exponent = 0;
    if (span.high > h->L) span.high = h->L;
    if (emit_plain(exps, g->labels, span, h->emit.mantissa) && blank >= LEAST_PLAIN) {
        for (int64_t i = span.low; i < span.high; i++) h->emit.exponent[i] = 0;
        return blank;
    }
    emit_split(scores, g->labels, span, h->emit.mantissa, h->emit.exponent);
    *exponent = ctcbind_split(scores[g->blank], &blank);
    return blank;
}

void ctcbind_chain_back(ctcbind_chain *h, int64_t t, const double *scores, const double *exps)
{
    ctcbind_powers next = h->ends, to = h->room;
    ctcbind_moves m = ctcbind_chain_moves(h, t);
    ctcbind_span span = {ctcbind_chain_span(h, t).low, ctcbind_chain_span(h, t + 1).high};
    double stays = h->g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0, exponent = 0;
    double blank = t < 0 ? 1 : emissions(h, span, scores, exps, &exponent);
    m.stay[h->n - 1] = m.to_blank[h->n - 1] = 0; /* what stands before the next two */
    retreat_to_labels(next.mantissa, next.exponent, h->skip, stays, h->emit.mantissa, h->emit.exponent, h->n, span,
                      m.stay, m.to_blank, m.skip, to.mantissa, to.exponent);
    retreat_to_blanks(next.mantissa, next.exponent, blank, exponent, h->n, span, m.to_label, m.wait,
                      to.mantissa + h->n + 1, to.exponent + h->n + 1);
    h->ends = to;
    h->room = next;
}

void ctcbind_chain_save(const ctcbind_chain *h, double *to)
{
    int64_t count = 2 * (h->n + 1);
    memcpy(to, h->ends.mantissa, (size_t)count * sizeof *to);
    memcpy(to + count, h->ends.exponent, (size_t)count * sizeof *to);
}

void ctcbind_chain_restore(ctcbind_chain *h, const double *from)
{
    int64_t count = 2 * (h->n + 1);
    ctcbind_powers both[] = {h->ends, h->room}; /* outside of a frame's span both have what they had then */
    for (int k = 0; k < 2; k++) {
        memcpy(both[k].mantissa, from, (size_t)count * sizeof *from);
        memcpy(both[k].exponent, from + count, (size_t)count * sizeof *from);
    }
}

int ctcbind_chain_has_path(const ctcbind_chain *h) { return h->ends.exponent[h->n + 1] > -INFINITY; }
