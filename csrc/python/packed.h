/* Labels, lengths and weights of a batch, as the engine takes them, from NumPy arrays and from lists and tuples. */
#ifndef CTCBIND_PACKED_H
#define CTCBIND_PACKED_H

#include "numpy_api.h"
#include "reduction.h"

/* Declined: not plain, or not right. -1 is an exception, as always. */
enum { NO = 0, YES = 1, RAISED = -1 };

typedef struct ctcbind_packed {
    int32_t *labels, *lengths; /* the second: N label lengths, N input lengths */
    double *weights;
    size_t labels_room, lengths_room, weights_room;
} ctcbind_packed;

/* What is exactly NumPy's; else NULL. */
static inline PyArrayObject *ctcbind_as_array(PyObject *value)
{
    return Py_TYPE(value) == CTCBIND_ARRAY_TYPE ? (PyArrayObject *)value : NULL;
}

/* Labels and lengths of the batch; the problem's sizes are set. */
int ctcbind_pack(ctcbind_packed *to, ctcbind_problem *problem, PyObject *targets, PyObject *input_lengths,
                 PyObject *target_lengths);

/* Lengths alone, of labels that are no more than `most` in a sample; zeros where None is given. */
int ctcbind_pack_lengths(ctcbind_packed *to, ctcbind_problem *problem, int32_t most, PyObject *input_lengths,
                         PyObject *target_lengths);

/* The weights of its samples, after that. */
int ctcbind_pack_weights(ctcbind_packed *to, ctcbind_problem *problem, int reduction);

void ctcbind_packed_free(ctcbind_packed *packed);

#endif
