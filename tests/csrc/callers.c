/* Callers on threads of their own make the first calls of a process at once, and then more, each with a batch of its
 * own. Prints how many of them got other results from one call than from another. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "ctcbind.h"

enum { CALLERS = 6, CALLS = 30, T = 64, N = 4, L = 6, MOST_C = 600 };

typedef struct {
    float *logits, *grad, losses[N], right_losses[N];
    float *right;
    int32_t labels[N * L], lengths[N], frames[N], C;
    int wrong;
} caller;

static atomic_int here;

static int call(caller *c, int threads)
{
    ctcbind_problem p = {
        .logits = c->logits, .logits_t = N * c->C, .logits_n = c->C, .logits_c = 1,
        .grad = c->grad, .grad_t = N * c->C, .grad_n = c->C, .grad_c = 1,
        .losses = c->losses, .labels = c->labels, .label_lengths = c->lengths, .input_lengths = c->frames,
        .T = T, .N = N, .C = c->C, .dtype = CTCBIND_FLOAT32, .threads = threads,
    };
    return ctcbind_loss(&p, NULL, 0);
}

static void *run(void *arg)
{
    caller *c = arg;
    size_t bytes = (size_t)T * N * (size_t)c->C * sizeof(float);
    for (atomic_fetch_add(&here, 1); atomic_load(&here) < CALLERS;) {
    }
    for (int k = 0; k < CALLS; k++) {
        if (call(c, 1 + k % 3) != CTCBIND_OK) c->wrong = 1;
        if (!k) {
            memcpy(c->right, c->grad, bytes);
            memcpy(c->right_losses, c->losses, sizeof c->losses);
        }
        if (memcmp(c->right, c->grad, bytes) || memcmp(c->right_losses, c->losses, sizeof c->losses)) c->wrong = 1;
    }
    return NULL;
}

int main(void)
{
    static caller callers[CALLERS];
    pthread_t threads[CALLERS];
    uint32_t state = 1;
    int wrong = 0;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = callers + i;
        c->C = i % 2 ? MOST_C : 30; /* which share the rows of a sample, and not */
        size_t count = (size_t)T * N * (size_t)c->C;
        c->logits = malloc(count * sizeof(float));
        c->grad = malloc(count * sizeof(float));
        c->right = malloc(count * sizeof(float));
        if (!c->logits || !c->grad || !c->right) return 3;
        for (size_t k = 0; k < count; k++) {
            state = state * 1664525u + 1013904223u;
            c->logits[k] = (float)(state >> 16) / 65536;
        }
        for (int k = 0; k < N * L; k++) c->labels[k] = 1 + k % 20;
        for (int n = 0; n < N; n++) c->lengths[n] = L, c->frames[n] = T;
    }
    for (int i = 0; i < CALLERS; i++) pthread_create(threads + i, NULL, run, callers + i);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        wrong += callers[i].wrong;
        free(callers[i].logits), free(callers[i].grad), free(callers[i].right);
    }
    printf("%d\n", wrong);
    return 0;
}
