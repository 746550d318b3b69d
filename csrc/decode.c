#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "size.h"

static int read_best(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *to)
{
    ctc_sample s = ctcbind_sample_of(rows);
    ctc_row row = ctcbind_reader(rows);
    double *room = malloc(ctcbind_size((uint64_t)s.C * sizeof *room));
    int32_t before = -1;
    to->length = 0;
    to->log_p = 0;
    if (!room) return CTCBIND_ROWS_NO_MEMORY;
    for (int32_t t = 0; t < s.T; t++) {
        ctc_best best;
        if (ctcbind_sample_stopped(s.C)) {
            free(room);
            return CTCBIND_ROWS_STOPPED;
        }
        row(&s, t, room, &best);
        if (best.rest != best.rest) {
            to->length = t;
            free(room);
            return CTCBIND_ROWS_NAN;
        }
        to->log_p -= best.top > -INFINITY ? log1p(best.rest) : INFINITY; /* there no class has any probability */
        if (best.first != blank && (simple || best.first != before)) to->labels[to->length++] = (int32_t)best.first;
        before = (int32_t)best.first;
    }
    free(room);
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
