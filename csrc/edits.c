#include "decode.h"

#include <stdlib.h>
#include <string.h>

/* Symbols are looked up in a table by themselves, less the least of them, unless they are so much further apart than
 * they are many: then each kind that a holds gets a number first. */
#define APART 4
#define ALWAYS 256

typedef struct place {
    int32_t symbol;
    uint32_t number; /* 0: nothing is here */
} place;

/* Scratch memory, which grows from pair to pair. */
typedef struct room {
    uint64_t *equal;       /* of each kind: the rows that hold it, of each strip; zeros in between */
    unsigned char *across; /* of each column, in the last of the rows done: the change from the one before, packed */
    place *places;         /* from symbols to numbers, open addressing */
    int32_t *numbers;      /* in the place of symbols, those of a, then of b */
    size_t kinds, columns, hashed, numbered; /* how many there is room for */
} room;

/* Zeros where it has grown, NULL where there is no memory. */
static void *grown(void *old, size_t *has, size_t wanted, size_t bytes)
{
    if (old && wanted <= *has) return old;
    free(old);
    *has = wanted + wanted / 2;
    return calloc(*has, bytes);
}

static place *look_up(const room *r, int32_t symbol, int bits)
{
    uint64_t last = ((uint64_t)1 << bits) - 1, at = (uint64_t)((uint32_t)symbol * 0x9e3779b1u) >> (32 - bits);
    while (r->places[at].number && r->places[at].symbol != symbol) at = (at + 1) & last;
    return r->places + at;
}

/* Of a its kinds, counted from 1 on as they come; of b the same, and 0 where a has no such symbol. How many numbers
 * that is; 0 where there is no memory. */
static uint64_t number_symbols(room *r, const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length)
{
    int bits = 4;
    while (bits < 32 && (int64_t)1 << bits < 2 * a_length) bits++;
    r->places = grown(r->places, &r->hashed, (size_t)1 << bits, sizeof *r->places);
    r->numbers = grown(r->numbers, &r->numbered, (size_t)(a_length + b_length), sizeof *r->numbers);
    if (!r->places || !r->numbers) return 0;
    memset(r->places, 0, ((size_t)1 << bits) * sizeof *r->places);
    uint32_t count = 0;
    for (int64_t i = 0; i < a_length; i++) {
        place *here = look_up(r, a[i], bits);
        if (!here->number) *here = (place){a[i], ++count};
        r->numbers[i] = (int32_t)here->number;
    }
    for (int64_t j = 0; j < b_length; j++) r->numbers[a_length + j] = (int32_t)look_up(r, b[j], bits)->number;
    return (uint64_t)count + 1;
}

/* The table of distances of all beginnings of a (down) and b (across), 64 rows at once: neighbours in it differ by 1 at
 * most, so a column of differences downwards is two words, of those that are +1 and those that are -1. Myers, Journal
 * of the ACM 46, 1999; in blocks, Hyyro, Nordic Journal of Computing 10, 2003. */
typedef struct strip {
    uint64_t up, down; /* of the last column done */
} strip;

static const strip FRESH = {~(uint64_t)0, 0}; /* in the first column each row has one more than the one above */

/* What a row has more in a column than in the one before: 1 in `more` if +1, in `less` if -1. */
typedef struct change {
    uint64_t more, less;
} change;

/* The next column of a strip, whose rows with the symbol there are `equal`: from the change above it to that of row
 * `last`, its last. */
static inline change next_column(strip *s, uint64_t equal, change above, int last)
{
    uint64_t vertical = equal | s->down;
    equal |= above.less;
    uint64_t horizontal = (((equal & s->up) + s->up) ^ s->up) | equal;
    uint64_t plus = s->down | ~(horizontal | s->up), minus = s->up & horizontal;
    change below = {plus >> last & 1, minus >> last & 1};
    plus = plus << 1 | above.more;
    minus = minus << 1 | above.less;
    s->up = minus | ~(vertical | plus);
    s->down = plus & vertical;
    return below;
}

static inline change unpack(unsigned char step) { return (change){step & 1, step >> 1}; }
static inline unsigned char pack(change c) { return (unsigned char)(c.more | c.less << 1); }

enum { STRIPS = 2 }; /* are done at once, the second a column behind: neither waits for the other */

/* Two strips, the second up to that row. */
static inline void two_strips(const uint64_t *equals, uint32_t least, int last, const int32_t *b, int64_t b_length,
                              unsigned char *across)
{
    strip first = FRESH, second = FRESH;
    const uint64_t *equal = equals + STRIPS * (size_t)((uint32_t)b[0] - least);
    change between = next_column(&first, equal[0], unpack(across[0]), 63);
    for (int64_t j = 1; j < b_length; j++) {
        uint64_t of_second = equal[1];
        equal = equals + STRIPS * (size_t)((uint32_t)b[j] - least);
        change after = next_column(&first, equal[0], unpack(across[j]), 63);
        across[j - 1] = pack(next_column(&second, of_second, between, last));
        between = after;
    }
    across[b_length - 1] = pack(next_column(&second, equal[1], between, last));
}

/* The next rows of a, up to 64 to a strip. `least` is what the symbols are counted from. */
static void next_rows(const room *r, uint32_t least, const int32_t *a, int count, const int32_t *b, int64_t b_length)
{
    uint64_t *equals = r->equal;
    for (int i = 0; i < count; i++)
        equals[STRIPS * (size_t)((uint32_t)a[i] - least) + i / 64] |= (uint64_t)1 << i % 64;
    if (count == 128) two_strips(equals, least, 63, b, b_length, r->across); /* a shift by a constant takes less time */
    else if (count > 64) two_strips(equals, least, count - 65, b, b_length, r->across);
    else {
        strip only = FRESH;
        for (int64_t j = 0; j < b_length; j++) {
            uint64_t equal = equals[STRIPS * (size_t)((uint32_t)b[j] - least)];
            r->across[j] = pack(next_column(&only, equal, unpack(r->across[j]), count - 1));
        }
    }
    for (int i = 0; i < count; i++) equals[STRIPS * (size_t)((uint32_t)a[i] - least) + i / 64] = 0;
}

static void widen(const int32_t *symbols, int64_t count, int32_t *least, int32_t *most)
{
    for (int64_t i = 0; i < count; i++) {
        *least = symbols[i] < *least ? symbols[i] : *least;
        *most = symbols[i] > *most ? symbols[i] : *most;
    }
}

static int64_t distance_of(room *r, const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length,
                           ctcbind_question *question)
{
    /* equal ends cost nothing, and are most of what two transcripts share */
    while (a_length && b_length && a[0] == b[0]) a++, b++, a_length--, b_length--;
    while (a_length && b_length && a[a_length - 1] == b[b_length - 1]) a_length--, b_length--;
    if (!a_length || !b_length) return a_length + b_length;
    if ((a_length + 63) / 64 * b_length > (b_length + 63) / 64 * a_length) { /* it is as far there as back */
        const int32_t *other = a;
        int64_t length = a_length;
        a = b, a_length = b_length;
        b = other, b_length = length;
    }
    int32_t least = a[0], most = a[0];
    widen(a, a_length, &least, &most);
    widen(b, b_length, &least, &most);
    uint64_t kinds = (uint64_t)((int64_t)most - least) + 1;
    if (kinds > ALWAYS && kinds > APART * (uint64_t)(a_length + b_length)) {
        if (!(kinds = number_symbols(r, a, a_length, b, b_length))) return -CTCBIND_ROWS_NO_MEMORY;
        a = r->numbers, b = r->numbers + a_length, least = 0;
    }
    r->equal = grown(r->equal, &r->kinds, STRIPS * (size_t)kinds, sizeof *r->equal);
    r->across = grown(r->across, &r->columns, (size_t)b_length, sizeof *r->across);
    if (!r->equal || !r->across) return -CTCBIND_ROWS_NO_MEMORY;
    memset(r->across, 1, (size_t)b_length); /* above the first row each column has one more than the one before */
    for (int64_t at = 0; at < a_length; at += STRIPS * 64) {
        if (ctcbind_stopped(question, 0)) return -CTCBIND_ROWS_STOPPED;
        int count = a_length - at < STRIPS * 64 ? (int)(a_length - at) : STRIPS * 64;
        next_rows(r, (uint32_t)least, a + at, count, b, b_length);
    }
    int64_t distance = a_length;
    for (int64_t j = 0; j < b_length; j++) distance += (r->across[j] & 1) - (r->across[j] >> 1);
    return distance;
}

int64_t ctcbind_edits(const int32_t *a, const int64_t *a_lengths, const int32_t *b, const int64_t *b_lengths,
                      int64_t pairs, ctcbind_ask stop)
{
    ctcbind_question question = {0};
    ctcbind_may_stop(&question, stop);
    room r = {0};
    int64_t sum = 0;
    for (int64_t n = 0; n < pairs; n++) {
        int64_t distance = distance_of(&r, a, a_lengths[n], b, b_lengths[n], &question);
        if (distance < 0) {
            sum = distance;
            break;
        }
        sum += distance;
        a += a_lengths[n];
        b += b_lengths[n];
    }
    free(r.equal);
    free(r.across);
    free(r.places);
    free(r.numbers);
    return sum;
}

int64_t ctcbind_edit_distance(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length,
                              ctcbind_ask stop)
{
    return ctcbind_edits(a, &a_length, b, &b_length, 1, stop);
}
