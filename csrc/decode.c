#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "size.h"

static int read_best(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *to)
{
    ctc_sample s = ctcbind_sample_of(rows);
    ctc_rows read = ctcbind_reader(rows);
    ctc_best best[BLOCK];
    double *room = malloc(ctcbind_size((uint64_t)ctcbind_room_of_rows(s.C) * sizeof *room));
    double sums = 0; /* stands for the product 1 + sums: one logarithm for many rows */
    int64_t before = -1;
    int status = room ? CTCBIND_ROWS_OK : CTCBIND_ROWS_NO_MEMORY;
    to->length = 0;
    to->log_p = 0;
    for (int32_t t0 = 0; t0 < s.T && status == CTCBIND_ROWS_OK; t0 += BLOCK) {
        int n = s.T - t0 < BLOCK ? s.T - t0 : BLOCK;
        if (ctcbind_sample_stopped((int64_t)n * s.C)) {
            status = CTCBIND_ROWS_STOPPED;
            break;
        }
        read(&s, t0, n, room, best);
        for (int r = 0; r < n; r++) {
            if (best[r].rest != best[r].rest) {
                to->length = t0 + r;
                status = CTCBIND_ROWS_NAN;
                break;
            }
            if (best[r].top == -INFINITY) to->log_p = -INFINITY; /* there no class has any probability */
            else sums += best[r].rest + best[r].rest * sums;
            to->labels[to->length] = (int32_t)best[r].first; /* without a branch, which nobody could foretell */
            to->length += (best[r].first != blank) & (simple | (best[r].first != before));
            before = best[r].first;
        }
        if (sums > 0x1p500) {
            to->log_p -= log1p(sums);
            sums = 0;
        }
    }
    to->log_p -= log1p(sums);
    free(room);
    return status;
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
