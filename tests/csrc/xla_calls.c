/* Calls the functions of xla.h as XLA does, with every array of exactly its size, so that a sanitizer sees what they
 * read and write. Prints one line a call: "ok", or the error's code and words. */
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

enum { N = 3, T = 9, C = 5, L = 3, S = 2 * L + 1 };

typedef struct {
    void *logits, *losses, *grad, *along; /* with the last, the product goes where the gradient does */
    void *bonus, *prior, *counts, *gamma; /* of a lattice */
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

/* Of two priors if the samples are in one more axis, which holds one of them each. */
static const char *lattice(arrays_t *a, int doubles, int results, double weight, int mapped)
{
    int64_t x_dims[] = {N, 1, T, C}, f_dims[] = {N, 1, T}, l_dims[] = {N, 1, L}, y_dims[] = {N, 1};
    int64_t c_dims[] = {N, 1, C}, b_dims[] = {N, 1, T, S}, p_dims[] = {N, C}, lone[] = {C};
    int64_t *x_flat[] = {x_dims + 1, f_dims + 1, l_dims + 1, y_dims + 1, c_dims + 1, b_dims + 1};
    for (int i = 0; i < 6; i++) x_flat[i][0] = mapped ? 1 : N;
    int dtype = doubles ? XLA_FLOAT64 : XLA_FLOAT32, other = doubles ? XLA_FLOAT32 : XLA_FLOAT64, types[6];
    for (int i = 0; i < 6; i++) types[i] = XLA_BUFFER;
    xla_buffer x = {.dtype = dtype, .data = a->logits, .rank = 3 + mapped, .dims = x_dims + !mapped};
    xla_buffer g = x, b = x, q = x;
    xla_buffer f = {.dtype = XLA_FLOAT32, .data = a->frames, .rank = 2 + mapped, .dims = f_dims + !mapped};
    xla_buffer l = {.dtype = XLA_INT32, .data = a->labels, .rank = 2 + mapped, .dims = l_dims + !mapped}, e = l;
    e.dtype = XLA_FLOAT32;
    e.data = a->ends;
    xla_buffer y = {.dtype = dtype, .data = a->losses, .rank = 1 + mapped, .dims = y_dims + !mapped};
    xla_buffer k = {.dtype = dtype, .data = a->counts, .rank = 2 + mapped, .dims = c_dims + !mapped};
    xla_buffer p = {.dtype = other, .data = a->prior, .rank = 1 + mapped, .dims = mapped ? p_dims : lone};
    g.data = a->grad;
    b.dims = q.dims = b_dims + !mapped;
    b.data = a->bonus;
    q.data = a->gamma;
    void *in[6] = {&x, &f, &l, &e}, *out[] = {&y, &g, &k, &q};
    int64_t given = 4;
    if (a->bonus) in[given++] = &b;
    if (a->prior) in[given++] = &p;
    xla_span one = {"blank", 5}, two = {"topology", 8}, three = {"weight", 6}, *names[] = {&one, &two, &three};
    int32_t blank = 0, topology = 0;
    xla_scalar first = {XLA_INT32, &blank}, second = {XLA_INT32, &topology}, third = {XLA_FLOAT64, &weight};
    void *values[] = {&first, &second, &third};
    int kinds[] = {XLA_SCALAR, XLA_SCALAR, XLA_SCALAR};
    xla_call frame = {
        .struct_size = sizeof frame,
        .api = &api,
        .stage = XLA_EXECUTE,
        .arguments = {.size = given, .types = types, .values = in},
        .results = {.size = results, .types = types, .values = out},
        .attributes = {.size = 3, .types = kinds, .names = names, .values = values},
    };
    return ctcbind_xla_lattice(&frame) ? said : "ok";
}

static double logit(int n, int t, int c) { return sin(n * 37 + t * 11 + c * 5); }

/* Numbers of frames that count, which stand where `holes` has a 0, in their order; NaN in all others. */
static void *rows(int doubles, const float *holes, int first, int width)
{
    void *to = copied(NULL, (size_t)(N * T * width) * (doubles ? sizeof(double) : sizeof(float)));
    for (int n = 0; n < N; n++)
        for (int t = 0, row = 0; t < T; t++) {
            int counts = holes[n * T + t] == 0;
            for (int c = 0; c < width; c++) {
                double v = counts ? logit(n + first, row, c) : (double)NAN;
                if (doubles) ((double *)to)[(n * T + t) * width + c] = v;
                else ((float *)to)[(n * T + t) * width + c] = (float)v;
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
    a.logits = rows(doubles, holes, 0, C);
    a.along = a.bonus = a.prior = NULL;
    a.counts = copied(NULL, N * C * z);
    a.gamma = copied(NULL, N * T * S * z);
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
    free(a->bonus);
    free(a->prior);
    free(a->counts);
    free(a->gamma);
    free(a->frames);
    free(a->ends);
    free(a->labels);
}

/* Whether the rows of b are those of a in their order, and zeros between them. */
static int in_order(const void *a, const void *b, const float *holes, int width, size_t z)
{
    int same = 1;
    for (int n = 0; n < N; n++)
        for (int t = 0, row = 0; t < T; t++) {
            unsigned char zero[S * sizeof(double)] = {0};
            int counts = holes[n * T + t] == 0;
            const char *is = (const char *)b + (size_t)((n * T + t) * width) * z;
            const char *was = (const char *)a + (size_t)((n * T + row) * width) * z;
            same &= !memcmp(is, counts ? was : (const char *)zero, (size_t)width * z);
            row += counts;
        }
    return same;
}

/* What was there before. */
static void spoil(arrays_t *a, size_t z)
{
    memset(a->losses, 0xee, N * z);
    memset(a->counts, 0xee, N * C * z);
    memset(a->grad, 0xee, N * T * C * z);
    memset(a->gamma, 0xee, N * T * S * z);
}

/* A lattice with and without what may be added, of frames that come first and of others. */
static void lattices(int doubles, const float *after, const float *among)
{
    size_t z = doubles ? 8 : 4, other = doubles ? 4 : 8;
    for (int added = 0; added < 4; added++) {
        int results = added & 1 ? 4 : 3;
        arrays_t a = make(doubles, after), b = make(doubles, among);
        if (added & 1) a.bonus = rows(doubles, after, 7, S), b.bonus = rows(doubles, among, 7, S);
        if (added & 2) {
            a.prior = copied(NULL, N * C * other);
            for (int i = 0; i < N * C; i++)
                if (doubles) ((float *)a.prior)[i] = (float)logit(1, 2, i);
                else ((double *)a.prior)[i] = logit(1, 2, i);
            b.prior = copied(a.prior, N * C * other);
        }
        for (int mapped = 0; mapped < 2; mapped++) {
            spoil(&a, z);
            spoil(&b, z);
            printf("%s %s", lattice(&a, doubles, results, 0.5, mapped), lattice(&b, doubles, results, 0.5, mapped));
            int same = !memcmp(a.losses, b.losses, N * z) && !memcmp(a.counts, b.counts, N * C * z);
            same &= in_order(a.grad, b.grad, among, C, z);
            if (a.bonus) same &= in_order(a.gamma, b.gamma, among, S, z);
            printf(" lattices %s", same ? "same" : "differ");
            memset(a.losses, 0xee, N * z);
            printf(" %s", lattice(&a, doubles, 1, 0.5, mapped));
            printf(" losses %s\n", memcmp(a.losses, b.losses, N * z) ? "differ" : "same");
        }
        drop(&a);
        drop(&b);
    }
}

/* What may not be added. */
static void refused(const float *after)
{
    arrays_t a = make(0, after);
    a.bonus = rows(0, after, 0, S);
    a.prior = copied(NULL, C * sizeof(double));
    float *bonus = a.bonus;
    double *prior = a.prior;
    for (int c = 0; c < C; c++) prior[c] = 0.2;
    printf("%s\n", lattice(&a, 0, 1, 1, 0));
    prior[2] = -INFINITY;
    printf("%s\n", lattice(&a, 0, 1, 1, 0));
    prior[2] = 1e200;
    printf("%s\n", lattice(&a, 0, 1, 1e100, 0));
    bonus[S * 8] = bonus[S * (2 * T - 1) - 1] = INFINITY; /* past the frames of one sample, and the states of another */
    printf("%s\n", lattice(&a, 0, 1, 1, 0));
    bonus[S * (T + 1) + 2] = INFINITY;
    printf("%s\n", lattice(&a, 0, 1, 1, 0));
    bonus[S * (T + 1) + 2] = NAN;
    printf("%s\n", lattice(&a, 0, 1, 1, 0));
    printf("%s\n", lattice(&a, 0, 2, 1, 0));
    drop(&a);
    a = make(1, after);
    a.bonus = rows(1, after, 0, S);
    ((double *)a.bonus)[S * (T + 1) + 2] = -1e299;
    printf("%s\n", lattice(&a, 1, 1, 1, 0));
    ((double *)a.bonus)[S * (T + 1) + 2] = -2e299;
    printf("%s\n", lattice(&a, 1, 1, 1, 0));
    drop(&a);
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
        printf(" gradients %s\n", in_order(a.grad, b.grad, among, C, z) ? "same" : "differ");
        memset(a.losses, 0xee, N * z);
        printf("%s", call(&a, doubles, 0, 0, XLA_EXECUTE));
        printf(" losses %s\n", memcmp(a.losses, b.losses, N * z) ? "differ" : "same");
        a.along = rows(doubles, after, N, C);
        b.along = rows(doubles, among, N, C);
        printf("%s %s", call(&a, doubles, 0, 0, XLA_EXECUTE), call(&b, doubles, 0, 0, XLA_EXECUTE));
        printf(" products %s\n", in_order(a.grad, b.grad, among, C, z) ? "same" : "differ");
        drop(&a);
        drop(&b);
        lattices(doubles, after, among);
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
    a.along = rows(0, after, N, C);
    printf("%s\n", call(&a, 0, 0, 5, XLA_EXECUTE));
    printf("%s\n", call(&a, 0, 0, 0, XLA_EXECUTE));
    drop(&a);
    refused(after);

    xla_metadata metadata = {.struct_size = sizeof metadata};
    xla_metadata_extension question = {.base = {.type = XLA_METADATA}, .metadata = &metadata};
    xla_call frame = {.api = &api, .extensions = &question.base};
    const char *answer = ctcbind_xla_loss(&frame) ? said : "ok";
    printf("%s %d.%d\n", answer, metadata.version.major_version, metadata.version.minor_version);
    return 0;
}
