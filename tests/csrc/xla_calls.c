/* Calls ctcbind_xla_loss and ctcbind_xla_product as XLA does, with every array of exactly its size, so that a sanitizer
 * sees what they read and write. Prints one line a call: "ok", or the error's code and words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla.h"

static char said[512];

static void *create_error(xla_error *error)
{
    snprintf(said, sizeof said, "%d %s", error->code, error->message);
    return said;
}

static const xla_api api = {.struct_size = sizeof api, .version = {.minor_version = 7}, .create_error = create_error};

enum { N = 3, T = 9, C = 5, L = 3 };

typedef struct {
    void *logits, *losses, *grad, *along; /* with the last, the product goes where the gradient does */
    float *frames, *ends;
    int32_t *labels;
} arrays_t;

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes ? bytes : 1);
    if (from) memcpy(to, from, bytes);
    else memset(to, 0xee, bytes);
    return to;
}

static const char *call(arrays_t *a, int doubles, int with_grad, int32_t blank, int stage)
{
    int64_t x_dims[] = {N, T, C}, f_dims[] = {N, T}, l_dims[] = {N, L};
    int dtype = doubles ? XLA_FLOAT64 : XLA_FLOAT32, types[5];
    for (int i = 0; i < 5; i++) types[i] = XLA_BUFFER;
    xla_buffer x = {.dtype = dtype, .data = a->logits, .rank = 3, .dims = x_dims}, g = x, y = x;
    xla_buffer f = {.dtype = XLA_FLOAT32, .data = a->frames, .rank = 2, .dims = f_dims};
    xla_buffer l = {.dtype = XLA_INT32, .data = a->labels, .rank = 2, .dims = l_dims}, e = l;
    e.dtype = XLA_FLOAT32;
    e.data = a->ends;
    y.rank = 1;
    y.data = a->losses;
    g.data = a->grad;
    xla_buffer v = x;
    v.data = a->along;
    void *in[] = {&x, &f, &l, &e, &v}, *out[] = {&y, &g}, *product[] = {&g};
    xla_span other = {"blink", 5}, name = {"blank", 5}, *names[] = {&other, &name};
    int32_t four = 4;
    xla_scalar wrong = {XLA_INT32, &four}, value = {XLA_INT32, &blank};
    void *values[] = {&wrong, &value};
    int kinds[] = {XLA_SCALAR, XLA_SCALAR};
    xla_call frame = {
        .struct_size = sizeof frame,
        .api = &api,
        .stage = stage,
        .arguments = {.size = a->along ? 5 : 4, .types = types, .values = in},
        .results = {.size = with_grad && !a->along ? 2 : 1, .types = types, .values = a->along ? product : out},
        .attributes = {.size = 2, .types = kinds, .names = names, .values = values},
    };
    return (a->along ? ctcbind_xla_product : ctcbind_xla_loss)(&frame) ? said : "ok";
}

static double logit(int n, int t, int c) { return sin(n * 37 + t * 11 + c * 5); }

/* Numbers of frames that count, which stand where `holes` has a 0, in their order; NaN in all others. */
static void *rows(int doubles, const float *holes, int first)
{
    void *to = copied(NULL, N * T * C * (doubles ? sizeof(double) : sizeof(float)));
    for (int n = 0; n < N; n++)
        for (int t = 0, row = 0; t < T; t++) {
            int counts = holes[n * T + t] == 0;
            for (int c = 0; c < C; c++) {
                double v = counts ? logit(n + first, row, c) : (double)NAN;
                if (doubles) ((double *)to)[(n * T + t) * C + c] = v;
                else ((float *)to)[(n * T + t) * C + c] = (float)v;
            }
            row += counts;
        }
    return to;
}

static arrays_t make(int doubles, const float *holes)
{
    arrays_t a;
    size_t z = doubles ? 8 : 4;
    static const int32_t labels[] = {1, 2, 2, 4, 99, 99, 3, 1, -7};
    static const float ends[] = {0, 0, 0, 0, 1, 1, 0, 0, 1};
    a.logits = rows(doubles, holes, 0);
    a.along = NULL;
    a.losses = copied(NULL, N * z);
    a.grad = copied(NULL, N * T * C * z);
    a.frames = copied(holes, N * T * sizeof *holes);
    a.ends = copied(ends, sizeof ends);
    a.labels = copied(labels, sizeof labels);
    return a;
}

static void drop(arrays_t *a)
{
    free(a->logits);
    free(a->losses);
    free(a->grad);
    free(a->along);
    free(a->frames);
    free(a->ends);
    free(a->labels);
}

/* Whether the rows of b are those of a in their order, and zeros between them. */
static int in_order(const arrays_t *a, const arrays_t *b, const float *holes, size_t z)
{
    int same = 1;
    for (int n = 0; n < N; n++)
        for (int t = 0, row = 0; t < T; t++) {
            unsigned char zero[C * sizeof(double)] = {0};
            int counts = holes[n * T + t] == 0;
            const char *is = (const char *)b->grad + (size_t)((n * T + t) * C) * z;
            const char *was = (const char *)a->grad + (size_t)((n * T + row) * C) * z;
            same &= !memcmp(is, counts ? was : (const char *)zero, C * z);
            row += counts;
        }
    return same;
}

int main(void)
{
    static const float after[N * T] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
    static const float among[N * T] = {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 0};
    ctcbind_xla_threads(2);
    for (int doubles = 0; doubles < 2; doubles++) {
        size_t z = doubles ? 8 : 4;
        arrays_t a = make(doubles, after), b = make(doubles, among);
        printf("%s %s", call(&a, doubles, 1, 0, XLA_EXECUTE), call(&b, doubles, 1, 0, XLA_EXECUTE));
        printf(" losses %s", memcmp(a.losses, b.losses, N * z) ? "differ" : "same");
        printf(" gradients %s\n", in_order(&a, &b, among, z) ? "same" : "differ");
        memset(a.losses, 0xee, N * z);
        printf("%s", call(&a, doubles, 0, 0, XLA_EXECUTE));
        printf(" losses %s\n", memcmp(a.losses, b.losses, N * z) ? "differ" : "same");
        a.along = rows(doubles, after, N);
        b.along = rows(doubles, among, N);
        printf("%s %s", call(&a, doubles, 0, 0, XLA_EXECUTE), call(&b, doubles, 0, 0, XLA_EXECUTE));
        printf(" products %s\n", in_order(&a, &b, among, z) ? "same" : "differ");
        drop(&a);
        drop(&b);
    }
    arrays_t a = make(0, after);
    printf("%s\n", call(&a, 0, 1, 5, XLA_EXECUTE));
    printf("%s\n", call(&a, 0, 1, 3, XLA_EXECUTE));
    printf("%s\n", call(&a, 0, 1, 3, XLA_EXECUTE - 1));
    a.labels[3] = 5;
    printf("%s\n", call(&a, 0, 1, 0, XLA_EXECUTE));
    a.labels[3] = INT32_MIN;
    printf("%s\n", call(&a, 0, 1, 0, XLA_EXECUTE));
    a.ends[3] = 1;
    a.ends[4] = 0;
    printf("%s\n", call(&a, 0, 1, 0, XLA_EXECUTE));
    a.frames[N * T - 1] = NAN;
    printf("%s\n", call(&a, 0, 1, 0, XLA_EXECUTE));
    a.frames[N * T - 1] = 0.25f;
    printf("%s\n", call(&a, 0, 1, 0, XLA_EXECUTE));
    a.along = rows(0, after, N);
    printf("%s\n", call(&a, 0, 0, 5, XLA_EXECUTE));
    printf("%s\n", call(&a, 0, 0, 0, XLA_EXECUTE));
    drop(&a);

    xla_metadata metadata = {.struct_size = sizeof metadata};
    xla_metadata_extension question = {.base = {.type = XLA_METADATA}, .metadata = &metadata};
    xla_call frame = {.api = &api, .extensions = &question.base};
    const char *answer = ctcbind_xla_loss(&frame) ? said : "ok";
    printf("%s %d.%d\n", answer, metadata.version.major_version, metadata.version.minor_version);
    return 0;
}
