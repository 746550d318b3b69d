#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

static int read_best(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *to)
{
    ctc_sample s;
    ctc_row row = ctcbind_reader(rows, &s);
    double *room = malloc((size_t)s.C * sizeof *room);
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

/* --- edit distance --------------------------------------------------------------------------------------------- */

/* The table of distances of all beginnings of a (down) and b (across), 64 rows at once: neighbours in it differ by 1 at
 * most, so a column of differences downwards is two words, of those that are +1 and those that are -1. Myers, Journal
 * of the ACM 46, 1999; in blocks, Hyyro, Nordic Journal of Computing 10, 2003. */
typedef struct strip {
    uint64_t *equal;       /* of each symbol: the rows that hold it */
    unsigned char *across; /* of each column, below the rows done: what it has more than the one before, 1: +1, 2: -1 */
} strip;

/* The next rows of a, up to 64; the sum of the differences across below the last. */
static int64_t next_rows(const strip *s, const int32_t *a, int count, const int32_t *b, int64_t b_length)
{
    uint64_t up = ~(uint64_t)0, down = 0; /* in the first column each row has one more than the one above it */
    int64_t sum = 0;
    for (int i = 0; i < count; i++) s->equal[a[i]] |= (uint64_t)1 << i;
    for (int64_t j = 0; j < b_length; j++) {
        uint64_t equal = s->equal[b[j]], more = s->across[j] & 1, less = s->across[j] >> 1;
        uint64_t vertical = equal | down;
        equal |= less;
        uint64_t horizontal = (((equal & up) + up) ^ up) | equal;
        uint64_t plus = down | ~(horizontal | up), minus = up & horizontal;
        uint64_t out_more = plus >> (count - 1) & 1, out_less = minus >> (count - 1) & 1;
        plus = plus << 1 | more;
        minus = minus << 1 | less;
        up = minus | ~(vertical | plus);
        down = plus & vertical;
        s->across[j] = (unsigned char)(out_more | out_less << 1);
        sum += (int64_t)out_more - (int64_t)out_less;
    }
    for (int i = 0; i < count; i++) s->equal[a[i]] = 0;
    return sum;
}

static int32_t largest_symbol(const int32_t *symbols, int64_t count, int32_t largest)
{
    for (int64_t i = 0; i < count; i++) largest = symbols[i] > largest ? symbols[i] : largest;
    return largest;
}

int64_t ctcbind_edit_distance(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length,
                              ctcbind_ask stop)
{
    ctcbind_question question = {0};
    ctcbind_may_stop(&question, stop);
    /* equal ends cost nothing, and are most of what two transcripts share */
    while (a_length && b_length && a[0] == b[0]) a++, b++, a_length--, b_length--;
    while (a_length && b_length && a[a_length - 1] == b[b_length - 1]) a_length--, b_length--;
    if (!a_length || !b_length) return a_length + b_length;
    int64_t kinds = (int64_t)largest_symbol(b, b_length, largest_symbol(a, a_length, 0)) + 1;
    int64_t distance = -CTCBIND_ROWS_NO_MEMORY;
    strip s = {calloc((size_t)kinds, sizeof *s.equal), malloc((size_t)b_length)};
    if (s.equal && s.across) {
        memset(s.across, 1, (size_t)b_length); /* above the first row each column has one more than the one before */
        for (int64_t at = 0; at < a_length; at += 64) {
            if (ctcbind_stopped(&question, 0)) {
                distance = -CTCBIND_ROWS_STOPPED;
                break;
            }
            distance = a_length + next_rows(&s, a + at, a_length - at < 64 ? (int)(a_length - at) : 64, b, b_length);
        }
    }
    free(s.equal);
    free(s.across);
    return distance;
}
