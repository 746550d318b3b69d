/* Each allocation of csrc/ is refused once, in all that allocates for a call: the call says that there is no memory, and
 * the next one computes what the one before did. Linked with --wrap for malloc, calloc and realloc. */
#include <stdio.h>
#include <stdlib.h>

#include "align.h"
#include "ctcbind.h"
#include "decode.h"
#include "lattice.h"
#include "second_order.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static int asked, refused; /* how many there were; the one to refuse, 0 for none */
static int refuses(void) { return ++asked == refused; }

void *__wrap_malloc(size_t size) { return refuses() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refuses() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return refuses() ? NULL : __real_realloc(old, size); }

enum { T = 24, L = 7, C = 6, WIDTH = 300 };

static float logits[T * C], grad[T * C];
static double along[T * C], bonus[T * (2 * L + 1)], sums[T * (2 * L + 1)], out[T * C], all[T * C * T * C], result;
static const int32_t labels[L] = {1, 2, 2, 5, 4, 3, 3}, others[L + 60] = {1, 2, 9, 1000000};
#define ROWS {logits, C, 1, T, C, CTCBIND_ROWS_FLOAT32} /* Clang takes no constant's value for another's */
static const ctcbind_rows rows = ROWS;
static const ctcbind_rows_out to = {out, C, 1, T, C, CTCBIND_ROWS_FLOAT64};
static ctcbind_graph graph = {.rows = ROWS, .labels = labels, .L = L, .bonus_t = 2 * L + 1, .bonus_s = 1};

static int loss(void)
{
    int32_t length = L, frames = T;
    float found = 0;
    ctcbind_problem p = {.logits = logits, .logits_t = C, .logits_n = C, .logits_c = 1, .grad = grad, .grad_t = C,
                         .grad_n = C, .grad_c = 1, .losses = &found, .labels = labels, .label_lengths = &length,
                         .input_lengths = &frames, .T = T, .N = 1, .C = C};
    int status = ctcbind_loss(&p, NULL, 0);
    result = (double)found;
    return status == CTCBIND_NO_MEMORY ? CTCBIND_ROWS_NO_MEMORY : status;
}

static int lattice(void *states, const double *added)
{
    ctcbind_lattice one = {.gamma = states, .T_out = T, .S_out = 2 * L + 1, .dtype = CTCBIND_ROWS_FLOAT64, .grad = to};
    graph.bonus = added;
    int status = ctcbind_lattices(&graph, &one, 1, 1, NULL);
    graph.bonus = NULL;
    result = one.log_z;
    return status | one.status;
}
static int of_states(void) { return lattice(sums, bonus); }
static int of_classes(void) { return lattice(NULL, NULL); }

static int alignment(void)
{
    static int32_t states[T], classes[T], starts[L], ends[L];
    static double scores[L];
    ctcbind_alignment one = {.states = states, .classes = classes, .starts = starts, .ends = ends, .scores = scores,
                             .T_out = T, .L_out = L};
    int status = ctcbind_alignments(&graph, &one, 1, 1, NULL);
    result = one.log_p;
    return status | one.status;
}

static int product(void)
{
    ctcbind_product one = {.along = {along, C, 1, T, C, CTCBIND_ROWS_FLOAT64}, .out = to};
    int status = ctcbind_products(&graph, &one, 1, 1, NULL);
    result = out[T];
    return status | one.status;
}

static int hessian(void)
{
    ctcbind_hessian one = {.data = all, .T_out = T, .dtype = CTCBIND_ROWS_FLOAT64};
    int status = ctcbind_hessians(&graph, &one, 1, 1, NULL);
    result = all[T];
    return status | one.status;
}

static int reading(void)
{
    static int32_t read[T];
    ctcbind_reading one = {.labels = read};
    int status = ctcbind_readings(&rows, 0, 0, &one, 1, 1, NULL);
    result = one.log_p;
    return status | one.status;
}

static double dislike(void *context, const int32_t *prefix, int32_t length, int32_t same)
{
    (void)context, (void)prefix, (void)same;
    return -0.5 * length;
}

static int beams(ctcbind_lm lm)
{
    ctcbind_beam_options options = {.width = WIDTH, .n_best = 1, .log_prune = -INFINITY, .lm = lm};
    ctcbind_beams one = {0};
    int status = ctcbind_beam_searches(&rows, &options, &one, 1, 1, NULL) | one.status;
    result = status == CTCBIND_ROWS_OK ? one.score[0] : 0;
    ctcbind_beams_free(&one);
    return status;
}
static int plain_beams(void) { return beams(NULL); }
static int spoken_beams(void) { return beams(dislike); }

static int edits(void)
{
    int64_t found = ctcbind_edit_distance(others, L + 60, labels, L, NULL);
    result = (double)found;
    return found < 0 ? (int)-found : CTCBIND_ROWS_OK;
}

static int refuse_each(const char *name, int (*call)(void))
{
    asked = refused = 0;
    int status = call(), count = asked;
    double right = result;
    if (status != CTCBIND_ROWS_OK || !count) printf("%s: %d after %d allocations\n", name, status, count);
    for (int which = 1; which <= count; which++) {
        asked = 0;
        refused = which;
        if ((status = call()) != CTCBIND_ROWS_NO_MEMORY) printf("%s without number %d: %d\n", name, which, status);
        refused = 0;
        if ((status = call()) != CTCBIND_ROWS_OK || result != right) printf("%s after that: %d\n", name, status);
    }
    return count;
}

int main(void)
{
    for (int i = 0; i < T * C; i++) logits[i] = (float)(i * 7 % 11) / 4, along[i] = i * 5 % 13;
    int count = refuse_each("loss", loss) + refuse_each("lattice of states", of_states) +
                refuse_each("lattice of classes", of_classes) + refuse_each("alignment", alignment) +
                refuse_each("product", product) + refuse_each("hessian", hessian) + refuse_each("reading", reading) +
                refuse_each("beams", plain_beams) + refuse_each("beams with a language model", spoken_beams) +
                refuse_each("edits", edits);
    printf("%d\n", count);
    return 0;
}
