#include "decode.h"

#include <stdlib.h>

static int read_best(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *to)
{
    double *row = malloc((size_t)rows->C * sizeof *row);
    int32_t before = -1;
    ctcbind_norm norm;
    to->length = 0;
    to->log_p = 0;
    if (!row) return CTCBIND_ROWS_NO_MEMORY;
    for (int32_t t = 0; t < rows->T; t++) {
        int32_t best = 0;
        if (ctcbind_sample_stopped(rows->C)) {
            free(row);
            return CTCBIND_ROWS_STOPPED;
        }
        if (!ctcbind_read_norm(rows, t, row, &norm)) {
            to->length = t;
            free(row);
            return CTCBIND_ROWS_NAN;
        }
        while (row[best] < norm.top) best++;
        ctcbind_take_off(row + best, 1, norm);
        to->log_p += row[best];
        if (best != blank && (simple || best != before)) to->labels[to->length++] = best;
        before = best;
    }
    free(row);
    return CTCBIND_ROWS_OK;
}

typedef struct batch {
    const ctcbind_rows *rows;
    int32_t blank, simple;
    ctcbind_reading *to;
} batch;

static void read_one(void *arg, int32_t n)
{
    const batch *b = arg;
    b->to[n].status = read_best(b->rows + n, b->blank, b->simple, b->to + n);
}

int ctcbind_readings(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *readings, int32_t N,
                     int32_t threads, ctcbind_ask stop)
{
    batch b = {rows, blank, simple, readings};
    return ctcbind_each_sample(N, threads, stop, read_one, &b);
}

int64_t ctcbind_edit_distance(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length, ctcbind_ask stop)
{
    ctcbind_question question = {0};
    ctcbind_may_stop(&question, stop);
    /* equal ends cost nothing, and are most of what two transcripts share */
    while (a_length && b_length && a[0] == b[0]) a++, b++, a_length--, b_length--;
    while (a_length && b_length && a[a_length - 1] == b[b_length - 1]) a_length--, b_length--;
    int64_t *row = malloc((size_t)(b_length + 1) * sizeof *row);
    if (!row) return -CTCBIND_ROWS_NO_MEMORY;
    for (int64_t j = 0; j <= b_length; j++) row[j] = j;
    for (int64_t i = 0; i < a_length; i++) {
        if (ctcbind_stopped(&question, 0)) {
            free(row);
            return -CTCBIND_ROWS_STOPPED;
        }
        int64_t corner = row[0], left = row[0] = i + 1;
        for (int64_t j = 0; j < b_length; j++) {
            int64_t above = row[j + 1], best = corner + (a[i] != b[j]);
            if (above + 1 < best) best = above + 1;
            if (left + 1 < best) best = left + 1;
            corner = above;
            row[j + 1] = left = best;
        }
    }
    int64_t distance = row[b_length];
    free(row);
    return distance;
}
