#include "trellis.h"

#include <stdlib.h>

#include "samples.h"
#include "size.h"

int64_t ctcbind_list_classes(const ctcbind_graph *g, int32_t *classes, int32_t *place, int32_t *seen)
{
    int64_t count = 0;
    for (int32_t c = 0; c < g->rows.C; c++) seen[c] = -1;
    for (int64_t i = 0; i <= g->L; i++) {
        int32_t c = i < g->L ? g->labels[i] : g->blank;
        if (seen[c] < 0) {
            seen[c] = (int32_t)count;
            classes[count++] = c;
        }
        place[i] = seen[c];
    }
    return count;
}

static int read_scores(ctcbind_trellis *v)
{
    const ctcbind_graph *g = v->g;
    for (int64_t t = 0; t < v->T; t++) {
        double *scores = v->scores + t * v->K;
        if (ctcbind_sample_stopped(g->rows.C)) return CTCBIND_ROWS_STOPPED;
        /* in doubles: over many frames the rounding of sums in floats adds up to more than a small loss may be wrong */
        if (!ctcbind_read_norm(&g->rows, (int32_t)t, v->row, v->norms + t)) return CTCBIND_ROWS_NAN;
        for (int64_t k = 0; k < v->K; k++) scores[k] = v->row[v->classes[k]];
        ctcbind_take_off(scores, (int32_t)v->K, v->norms[t]);
        for (int64_t k = 0; k < v->K && g->prior; k++) scores[k] -= g->prior[v->classes[k]];
    }
    return CTCBIND_ROWS_OK;
}

int ctcbind_trellis_open(ctcbind_trellis *v, const ctcbind_graph *g, int64_t doubles)
{
    int64_t T = g->rows.T, n = (int64_t)g->L + 1, C = g->rows.C, most = n < C ? n : C;
    *v = (ctcbind_trellis){.g = g, .rows = ctcbind_sample_of(&g->rows), .T = T, .L = g->L, .n = n};
    double *left = malloc(ctcbind_size((uint64_t)(2 * T + T * most + C + n + 1 + doubles) * sizeof *left +
                                       (uint64_t)(n + most + C) * sizeof *v->place));
    if (!left) return CTCBIND_ROWS_NO_MEMORY;
    v->norms = (ctcbind_norm *)ctcbind_take(&left, 2 * T);
    v->scores = ctcbind_take(&left, T * most);
    v->row = ctcbind_take(&left, C);
    v->skip = ctcbind_take(&left, n + 1);
    v->room = ctcbind_take(&left, doubles);
    v->place = (int32_t *)left;
    v->classes = v->place + n;
    v->stay = g->topology == CTCBIND_GRAPH_SIMPLE ? -INFINITY : 0;
    for (int64_t i = 0; i <= n; i++) v->skip[i] = i < v->L && ctcbind_skips(g, 2 * i + 1) ? 0 : -INFINITY;
    v->K = ctcbind_list_classes(g, v->classes, v->place, v->classes + most);
    return read_scores(v);
}

void ctcbind_trellis_close(ctcbind_trellis *v)
{
    free(v->norms);
}

CTCBIND_CLONES static void gather(const double *restrict from, const int32_t *restrict place, int64_t count,
                                  double *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = from[place[i]];
}

void ctcbind_trellis_spread(const ctcbind_trellis *v, const double *of_classes, double none, double *to)
{
    double blank = of_classes[v->place[v->L]];
    gather(of_classes, v->place, v->L, to);
    to[v->L] = none;
    for (int64_t i = v->n; i < 2 * v->n; i++) to[i] = blank;
}

void ctcbind_trellis_gather(const ctcbind_trellis *v, const double *shares, double *of_classes)
{
    for (int64_t k = 0; k < v->K; k++) of_classes[k] = 0;
    for (int64_t i = 0; i < v->L; i++) of_classes[v->place[i]] += shares[i];
    of_classes[v->place[v->L]] += ctcbind_sum(shares + v->n, v->n);
}

void ctcbind_trellis_write(const ctcbind_trellis *v, int64_t t, const double *of_classes, const ctcbind_rows_out *out)
{
    const ctc_kernel *kernel = ctcbind_kernel();
    double top = v->norms[t].top, factor = exp(-v->norms[t].log_sum);
    if (v->rows.dtype == CTCBIND_FLOAT64) {
        kernel->soft64(&v->rows, t, top, factor, v->row);
        for (int64_t k = 0; k < v->K; k++) v->row[v->classes[k]] -= of_classes[k];
        ctcbind_write_row(out, t, v->row);
        return;
    }
    int at_once = out->stride_c == 1;
    float *row = at_once ? (float *)out->data + t * out->stride_t : (float *)v->row;
    kernel->soft32(&v->rows, t, top, factor, row);
    for (int64_t k = 0; k < v->K; k++) row[v->classes[k]] = (float)(row[v->classes[k]] - of_classes[k]);
    if (!at_once) ctcbind_write_floats(out, t, row);
}
