/* A warp-ctc that computes nothing: it records what it was called with and answers with the status it was told.
 * The options have the real header's shape, union and all, so that passing by value is put to the proof. */
#include <stddef.h>
#include <stdint.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 2
#endif

typedef struct {
    int loc;
    union {
        unsigned int num_threads;
        void *stream;
    };
    int blank_label;
} Options;

int64_t fake_record[16]; /* which function, then its arguments in order, then loc, threads, stream, blank */
int fake_status;

static void options_at(int i, Options o) {
    fake_record[i] = o.loc;
    fake_record[i + 1] = o.num_threads;
    fake_record[i + 2] = (int64_t)(intptr_t)o.stream;
    fake_record[i + 3] = o.blank_label;
}

static int compute(int which, const void *activations, void *gradients, const int *labels, const int *label_lengths,
                   const int *input_lengths, int alphabet, int minibatch, void *costs, void *workspace, Options o) {
    const int64_t all[12] = {which, (intptr_t)activations, (intptr_t)gradients, labels[0], label_lengths[0],
                             input_lengths[0], alphabet, minibatch, (intptr_t)costs, (intptr_t)workspace};
    for (int i = 0; i < 10; i++) fake_record[i] = all[i];
    options_at(10, o);
    return fake_status;
}

static int size(int which, const int *label_lengths, const int *input_lengths, int alphabet, int minibatch, Options o,
                size_t *bytes) {
    const int64_t all[5] = {which, label_lengths[0], input_lengths[0], alphabet, minibatch};
    for (int i = 0; i < 5; i++) fake_record[i] = all[i];
    options_at(10, o);
    *bytes = 4000 + which;
    return fake_status;
}

int get_warpctc_version(void) { return FAKE_VERSION; }
const char *ctcGetStatusString(int status) { return status == 2 ? "two" : "another"; }

#ifndef FAKE_WITHOUT_COMPUTE
int compute_ctc_loss(const float *x, float *g, const int *l, const int *ll, const int *il, int a, int m, float *c,
                     void *w, Options o) {
    return compute(1, x, g, l, ll, il, a, m, c, w, o);
}
int compute_ctc_loss_double(const double *x, double *g, const int *l, const int *ll, const int *il, int a, int m,
                            double *c, void *w, Options o) {
    return compute(2, x, g, l, ll, il, a, m, c, w, o);
}
#endif
int get_workspace_size(const int *ll, const int *il, int a, int m, Options o, size_t *s) {
    return size(3, ll, il, a, m, o, s);
}
int get_workspace_size_double(const int *ll, const int *il, int a, int m, Options o, size_t *s) {
    return size(4, ll, il, a, m, o, s);
}
