#include "decode.h"

#include <stdlib.h>

int ctcbind_greedy(const ctcbind_rows *rows, int32_t blank, int32_t simple, int32_t *labels, int32_t *length,
                   double *log_p)
{
    double *row = malloc((size_t)rows->C * sizeof *row), sum = 0;
    int32_t count = 0, before = -1;
    if (!row) return CTCBIND_ROWS_NO_MEMORY;
    for (int32_t t = 0; t < rows->T; t++) {
        int32_t best = 0;
        if (!ctcbind_log_softmax(rows, t, row)) {
            *length = t;
            free(row);
            return CTCBIND_ROWS_NAN;
        }
        for (int32_t c = 1; c < rows->C; c++)
            if (row[c] > row[best]) best = c;
        sum += row[best];
        if (best != blank && (simple || best != before)) labels[count++] = best;
        before = best;
    }
    free(row);
    *length = count;
    *log_p = sum;
    return CTCBIND_ROWS_OK;
}

int64_t ctcbind_edit_distance(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length)
{
    /* equal ends cost nothing, and are most of what two transcripts share */
    while (a_length && b_length && a[0] == b[0]) a++, b++, a_length--, b_length--;
    while (a_length && b_length && a[a_length - 1] == b[b_length - 1]) a_length--, b_length--;
    int64_t *row = malloc((size_t)(b_length + 1) * sizeof *row);
    if (!row) return -1;
    for (int64_t j = 0; j <= b_length; j++) row[j] = j;
    for (int64_t i = 0; i < a_length; i++) {
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
