#include "xla.h"

#include <stdlib.h>

#include "batch.h"
#include "ctcbind.h"
#include "flush.h"
#include "second_order.h"
#include "size.h"
#include "xla_batch.h"

typedef struct {
    ctcbind_xla_batch batch;
    const xla_buffer *along; /* of a product alone */
    xla_buffer *losses;      /* of the loss alone */
    xla_buffer *wide;        /* the gradient, which may be NULL, or the product */
} call_t;

static xla_buffer *like(const xla_buffer *logits, const xla_values *values, int64_t i)
{
    xla_buffer *found = ctcbind_xla_buffer(values, i, logits->rank, logits->dtype);
    return found && ctcbind_xla_same_dims(logits, found, logits->rank) ? found : NULL;
}

static int decode_loss(ctcbind_xla_batch *b, const xla_values *in, const xla_values *out, const xla_attributes *options)
{
    call_t *c = (call_t *)b;
    int64_t front = b->logits->rank - 2;
    (void)options;
    if (in->size != 4 || out->size < 1 || out->size > 2) return 0;
    c->losses = ctcbind_xla_buffer(out, 0, front, b->logits->dtype);
    if (!c->losses || !ctcbind_xla_same_dims(b->logits, c->losses, front)) return 0;
    return out->size == 1 || (c->wide = like(b->logits, out, 1));
}

static int decode_product(ctcbind_xla_batch *b, const xla_values *in, const xla_values *out,
                          const xla_attributes *options)
{
    call_t *c = (call_t *)b;
    (void)options;
    if (in->size != 5 || out->size != 1) return 0;
    return (c->along = like(b->logits, in, 4)) && (c->wide = like(b->logits, out, 0));
}

static void *losses(const call_t *c, const void *logits, void *grad)
{
    const ctcbind_xla_batch *b = &c->batch;
    ctcbind_problem p = {
        .logits = logits,
        .grad = grad,
        .losses = c->losses->data,
        .logits_t = b->C,
        .logits_n = b->T * b->C,
        .logits_c = 1,
        .grad_t = b->C,
        .grad_n = b->T * b->C,
        .grad_c = 1,
        .labels = b->packed,
        .label_lengths = b->label_lengths,
        .input_lengths = b->input_lengths,
        .T = (int32_t)b->T,
        .N = (int32_t)b->N,
        .C = (int32_t)b->C,
        .blank = b->blank,
        .dtype = b->size == 8 ? CTCBIND_FLOAT64 : CTCBIND_FLOAT32,
        .topology = CTCBIND_TOPOLOGY_CTC,
        .threads = ctcbind_xla_thread_count(),
    };
    int status = ctcbind_loss(&p, NULL, 0);
    if (status == CTCBIND_NO_MEMORY)
        return ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the workspace");
    if (status != CTCBIND_OK)
        return ctcbind_xla_refuse(b, XLA_INTERNAL, "ctcbind_loss returned %d; is CTCBIND_ISA one of this machine's?",
                                  status);
    return NULL;
}

static void *products(const call_t *c, const unsigned char *logits, const unsigned char *along, unsigned char *to)
{
    const ctcbind_xla_batch *b = &c->batch;
    int32_t T = (int32_t)b->T, C = (int32_t)b->C, N = (int32_t)b->N;
    size_t sample = (size_t)b->T * (size_t)b->C * b->size;
    int dtype = b->size == 8 ? CTCBIND_ROWS_FLOAT64 : CTCBIND_ROWS_FLOAT32;
    ctcbind_graph *graphs = calloc((size_t)N, sizeof *graphs);
    ctcbind_product *each = calloc((size_t)N, sizeof *each);
    void *error = ctcbind_xla_without_kernels(b);
    if (!error && (!graphs || !each))
        error = ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the samples");
    for (int32_t n = 0; n < N && !error; n++, logits += sample, along += sample, to += sample) {
        graphs[n].rows = (ctcbind_rows){.data = logits, .stride_t = C, .stride_c = 1, .C = C, .dtype = dtype};
        graphs[n].blank = b->blank;
        each[n].along = (ctcbind_rows){.data = along, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
        each[n].out = (ctcbind_rows_out){.data = to, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
    }
    if (!error) {
        ctcbind_set_labels(graphs, b->packed, b->label_lengths, b->input_lengths, N);
        unsigned mode = flush_nothing(); /* as on the other threads */
        ctcbind_products(graphs, each, N, ctcbind_xla_threads_for(b), NULL);
        flush_end(mode);
    }
    for (int32_t n = 0; n < N && !error; n++)
        if (each[n].status == CTCBIND_ROWS_NO_MEMORY)
            error = ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the product with the Hessian");
    free(graphs);
    free(each);
    return error;
}

static void *compute(const ctcbind_xla_batch *b)
{
    const call_t *c = (const call_t *)b;
    size_t row = (size_t)b->C * b->size, batch = (size_t)b->N * (size_t)b->T * row;
    unsigned char *logits = b->logits->data, *along = c->along ? c->along->data : NULL;
    unsigned char *wide = c->wide ? c->wide->data : NULL, *room = NULL;
    if (wide) ctcbind_xla_large_pages(wide, batch);
    if (b->moved) {
        room = malloc(ctcbind_size((uint64_t)batch * (1 + !!along + !!wide)));
        if (!room)
            return ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory to bring the frames that count together");
        ctcbind_xla_to_front(b, b->logits->data, logits = room, row);
        if (wide) wide = room + batch;
        if (along) ctcbind_xla_to_front(b, c->along->data, along = room + 2 * batch, row);
    }
    void *error = along ? products(c, logits, along, wide) : losses(c, logits, wide);
    if (b->moved && wide && !error) ctcbind_xla_back(b, wide, c->wide->data, row);
    free(room);
    return error;
}

void *ctcbind_xla_loss(void *call)
{
    static const ctcbind_xla_function function = {"loss", decode_loss, compute};
    call_t c = {.along = NULL};
    return ctcbind_xla_answer(call, &c.batch, &function);
}

void *ctcbind_xla_product(void *call)
{
    static const ctcbind_xla_function function = {"product", decode_product, compute};
    call_t c = {.along = NULL};
    return ctcbind_xla_answer(call, &c.batch, &function);
}
