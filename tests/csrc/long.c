/* Long samples, and wide ones, where 32 bits cannot count what they need: that is never less than what shorter ones do, and nothing is
 * computed in it. */
#include <stdio.h>
#include <stdlib.h>

#include "align.h"
#include "ctcbind.h"
#include "decode.h"
#include "second_order.h"

static void fail(const char *why)
{
    fprintf(stderr, "long: %s\n", why);
    exit(1);
}

static void sizes_grow(int32_t dtype)
{
    size_t before = 0, align_before = 0;
    for (int32_t T = 2000; T <= 4000000; T += T / 7) {
        int32_t L = T / 2;
        ctcbind_problem p = {.T = T, .N = 1, .C = 4, .dtype = dtype, .label_lengths = &L, .input_lengths = &T};
        p.logits_t = p.logits_n = p.grad_t = p.grad_n = 4;
        p.logits_c = p.grad_c = 1;
        p.grad = &p; /* which is not looked at */
        size_t bytes = ctcbind_workspace_size(&p), align = ctcbind_align_bytes(T, L, 4);
        if (bytes < before) fail("a longer sample needs less");
        if (align < align_before / 2) fail("to align a longer sample needs less"); /* a little may be, by its blocks */
        before = bytes;
        align_before = align;
    }
}

static void products_are_refused(void)
{
    enum { T = 200000, L = 100000, C = 4 };
    static float logits[T * C];
    static double out[T * C];
    static int32_t labels[L];
    for (int i = 0; i < L; i++) labels[i] = 1 + i % 3;
    ctcbind_rows rows = {logits, C, 1, T, C, CTCBIND_ROWS_FLOAT32};
    ctcbind_graph graph = {.rows = rows, .labels = labels, .L = L};
    ctcbind_product product = {.along = rows, .out = {out, C, 1, T, C, CTCBIND_ROWS_FLOAT64}};
    if (ctcbind_products(&graph, &product, 1, 1, NULL) != CTCBIND_ROWS_OK) fail("products were stopped");
    if (product.status != CTCBIND_ROWS_NO_MEMORY) fail("a product in memory that cannot be had");
}

/* A row of one number again and again is gathered before it is read. */
static void readings_are_refused(void)
{
    static const float logits[1] = {0};
    int32_t labels[1];
    ctcbind_rows rows = {logits, 0, 0, 1, 1 << 29, CTCBIND_ROWS_FLOAT32};
    ctcbind_reading reading = {.labels = labels};
    if (ctcbind_readings(&rows, 0, 0, &reading, 1, 1, NULL) != CTCBIND_ROWS_OK) fail("readings were stopped");
    if (reading.status != CTCBIND_ROWS_NO_MEMORY) fail("a reading in memory that cannot be had");
}

int main(void)
{
    for (int32_t dtype = 0; dtype < 4; dtype++) sizes_grow(dtype);
    if (sizeof(size_t) < 8) products_are_refused(), readings_are_refused();
    return 0;
}
