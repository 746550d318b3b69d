/* Runs the problems of a file through csrc/ and writes what comes out: driver PROBLEMS RESULTS
 *
 * problems.py writes the first and reads the second. Every array is as large as it must be and no larger, so that a
 * sanitizer sees one element too many. Each problem runs with just the scratch that it asks for, full of NaN; again
 * with none given; and for its losses alone. All must agree to the bit. Where the build asks at each block whether to
 * stop, so must what comes after a call that was stopped, early or late. Numbers are little-endian, as on every machine
 * that this runs on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctcbind.h"

typedef struct {
    int64_t strides[6];    /* of the logits, then of the gradient, in elements: t, n, c */
    int64_t logits, first; /* elements of the buffer, and which of them is (0, 0, 0) */
    int64_t grad, first_grad;
    int64_t labels;
    int32_t T, N, C, blank, dtype, topology, threads, with_grad, with_weights, unused;
} header_t;

static void fail(const char *why)
{
    fprintf(stderr, "driver: %s\n", why);
    exit(1);
}

static void *room(size_t bytes)
{
    void *at = malloc(bytes ? bytes : 1);
    if (!at) fail("no memory");
    return at;
}

static void *take(FILE *file, size_t bytes)
{
    void *at = room(bytes);
    if (fread(at, 1, bytes, file) != bytes) fail("the problems end too early");
    return at;
}

static void put(FILE *file, const void *at, size_t bytes)
{
    if (fwrite(at, 1, bytes, file) != bytes) fail("the results cannot be written");
}

#ifdef STATES_BETWEEN
/* How often the engine has asked whether to stop, and which of these times it is told to. */
static int asked, enough;
static int stop(void) { return ++asked == enough; }

/* So many blocks of 16 rows have to be gone through, at least once. */
static int64_t blocks_of(const ctcbind_problem *p)
{
    int64_t blocks = 0, at = 0;
    for (int32_t n = 0; n < p->N; at += p->label_lengths[n++]) {
        int64_t need = p->label_lengths[n];
        for (int64_t i = 1; i < p->label_lengths[n]; i++)
            need += p->topology == CTCBIND_TOPOLOGY_CTC && p->labels[at + i] == p->labels[at + i - 1];
        if (need <= p->input_lengths[n]) blocks += (p->input_lengths[n] + 15) / 16;
    }
    return blocks;
}

/* Stops the problem where it asks for the first time, the third, the eleventh, the 43rd...; after each it must run as
 * before, in the same scratch. `grad` is the whole of its gradient's memory. */
static void stop_early(ctcbind_problem p, void *grad, size_t grad_bytes, const void *right_grad, size_t loss_bytes,
                       const void *right_losses)
{
    size_t bytes = ctcbind_workspace_size(&p);
    void *workspace = ctcbind_workspace_new(bytes);
    if (!workspace) fail("no memory");
    memset(workspace, 0xff, bytes);
    p.stop = stop;
    asked = enough = 0;
    if (ctcbind_loss(&p, workspace, bytes) != CTCBIND_OK) fail("stopped without being told to");
    if (p.threads <= 1 && asked < blocks_of(&p)) fail("it does not ask at each block whether to stop");
    int most = asked < 4 * blocks_of(&p) + 20 ? asked : (int)(4 * blocks_of(&p)) + 20; /* who waits asks all the time */
    for (int at = 1; at <= most; at = 4 * at - 1) {
        asked = 0;
        enough = at;
        int status = ctcbind_loss(&p, workspace, bytes);
        /* with threads it may ask less often, as it does not wait for them as long */
        if (asked >= enough && status != CTCBIND_STOPPED) fail("told to stop, and went on");
        if (asked > enough) fail("told to stop, and asked again");
        if (asked < enough && (p.threads <= 1 || status != CTCBIND_OK)) fail("it asks less often the second time");
        enough = 0;
        memset(grad, 0xa5, grad_bytes);
        memset(p.losses, 0x5a, loss_bytes);
        if (ctcbind_loss(&p, workspace, bytes) != CTCBIND_OK) fail("another status after a call that was stopped");
        if (memcmp(p.losses, right_losses, loss_bytes)) fail("other losses after a call that was stopped");
        if (memcmp(grad, right_grad, grad_bytes)) fail("another gradient after a call that was stopped");
    }
    ctcbind_workspace_free(workspace);
}
#endif

int main(int count, char **args)
{
    header_t h;
    if (count != 3) fail("two files: problems and results");
    FILE *in = fopen(args[1], "rb"), *out = fopen(args[2], "wb");
    if (!in || !out) fail("a file cannot be opened");
    char isa[8] = {0};
    strncpy(isa, ctcbind_isa(), sizeof isa - 1);
    put(out, isa, sizeof isa);
    while (fread(&h, sizeof h, 1, in) == 1) {
        size_t size = h.dtype == CTCBIND_FLOAT64 ? 8 : h.dtype == CTCBIND_FLOAT32 ? 4 : 2, N = (size_t)h.N;
        size_t loss_bytes = N * (size == 8 ? 8 : 4), grad_bytes = h.with_grad ? (size_t)h.grad * size : 0;
        unsigned char *logits = take(in, (size_t)h.logits * size), *before = room((size_t)h.logits * size);
        int32_t *labels = take(in, (size_t)h.labels * 4);
        int32_t *label_lengths = take(in, N * 4), *input_lengths = take(in, N * 4);
        double *weights = h.with_weights ? take(in, N * 8) : NULL;
        unsigned char *grad = room(grad_bytes), *again = room(grad_bytes);
        void *losses = room(loss_bytes), *losses_again = room(loss_bytes);
        memcpy(before, logits, (size_t)h.logits * size);
        memset(grad, 0xa5, grad_bytes);
        memset(again, 0xa5, grad_bytes);
        memset(losses, 0xa5, loss_bytes);
        memset(losses_again, 0x5a, loss_bytes);

        ctcbind_problem p = {0};
        p.logits = logits + (size_t)h.first * size;
        p.logits_t = h.strides[0], p.logits_n = h.strides[1], p.logits_c = h.strides[2];
        p.grad_t = h.strides[3], p.grad_n = h.strides[4], p.grad_c = h.strides[5];
        p.labels = labels;
        p.label_lengths = label_lengths;
        p.input_lengths = input_lengths;
        p.weights = weights;
        p.T = h.T, p.N = h.N, p.C = h.C, p.blank = h.blank;
        p.dtype = h.dtype, p.topology = h.topology, p.threads = h.threads;
        p.grad = h.with_grad ? grad + (size_t)h.first_grad * size : NULL;
        p.losses = losses;
        size_t bytes = ctcbind_workspace_size(&p);
        void *workspace = ctcbind_workspace_new(bytes);
        if (!workspace) fail("no memory");
        memset(workspace, 0xff, bytes);
        if (p.N && bytes && ctcbind_loss(&p, workspace, bytes - 1) != CTCBIND_SMALL) fail("too small, and was taken");
        for (size_t k = 0; k < grad_bytes; k++)
            if (grad[k] != 0xa5) fail("too small, and a gradient all the same");
        for (size_t k = 0; k < loss_bytes; k++)
            if (((unsigned char *)losses)[k] != 0xa5) fail("too small, and a loss all the same");
        int32_t status = ctcbind_loss(&p, workspace, bytes);
        ctcbind_workspace_free(workspace);

        p.losses = losses_again;
        if (h.with_grad) p.grad = again + (size_t)h.first_grad * size;
        if (ctcbind_loss(&p, NULL, 0) != status) fail("another status without a workspace");
        if (status == CTCBIND_OK && (memcmp(losses, losses_again, loss_bytes) || memcmp(grad, again, grad_bytes)))
            fail("other results without a workspace");
#ifdef STATES_BETWEEN
        if (status == CTCBIND_OK) {
            stop_early(p, again, grad_bytes, grad, loss_bytes, losses);
            p.grad = NULL;
            stop_early(p, again, 0, grad, loss_bytes, losses);
        }
#endif
        p.grad = NULL;
        memset(losses_again, 0x5a, loss_bytes);
        if (ctcbind_loss(&p, NULL, 0) != status) fail("another status for the losses alone");
        if (status == CTCBIND_OK && memcmp(losses, losses_again, loss_bytes)) fail("other losses without a gradient");
        if (memcmp(before, logits, (size_t)h.logits * size)) fail("the logits were written to");

        put(out, &status, sizeof status);
        put(out, losses, loss_bytes);
        put(out, grad, grad_bytes);
        free(logits), free(before), free(labels), free(label_lengths), free(input_lengths), free(weights);
        free(grad), free(again), free(losses), free(losses_again);
    }
    if (fclose(in) || fclose(out)) fail("a file cannot be closed");
    return 0;
}
