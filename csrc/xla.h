/* The losses, products with their Hessians, and losses with scores added to the lattice, as functions that a program
 * compiled by XLA (JAX) calls itself, on the host.
 *
 * Declared here is what XLA and such a function say to each other, as far as it is used: the C API of XLA's FFI, major
 * version 0 (xla/ffi/api/c_api.h in jaxlib). Its structs begin with their size and grow at their ends alone.
 */
#ifndef CTCBIND_XLA_H
#define CTCBIND_XLA_H

#include <stddef.h>
#include <stdint.h>

typedef struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
} xla_extension;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    int major_version, minor_version;
} xla_version;

/* With the first extension of type XLA_METADATA a call asks for nothing but the version that the function was made
 * for. */
typedef struct {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    const char *message; /* copied */
    int code;
} xla_error;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    void *(*create_error)(xla_error *error); /* the error, which is XLA's once it has been returned */
} xla_api;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    int dtype;
    void *data; /* without gaps */
    int64_t rank;
    int64_t *dims;
} xla_buffer;

/* Arguments, or results. */
typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    int64_t size;
    int *types;
    void **values;
} xla_values;

typedef struct {
    const char *ptr;
    size_t len;
} xla_span;

typedef struct {
    int dtype;
    void *value;
} xla_scalar;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    int64_t size;
    int *types;
    xla_span **names;
    void **values;
} xla_attributes;

typedef struct {
    size_t struct_size;
    xla_extension *extensions;
    const xla_api *api;
    void *context;
    int stage;
    xla_values arguments, results;
    xla_attributes attributes;
} xla_call;

enum { XLA_METADATA = 1, XLA_BUFFER = 1, XLA_SCALAR = 3, XLA_EXECUTE = 3 };
enum { XLA_INT32 = 4, XLA_FLOAT32 = 11, XLA_FLOAT64 = 12 };
enum { XLA_INVALID_ARGUMENT = 3, XLA_RESOURCE_EXHAUSTED = 8, XLA_INTERNAL = 13 };

/* Arguments: logits (..., T, C) in float32 or float64, frames' paddings (..., T) in float32, labels (..., L) in int32,
 * their paddings (..., L) in float32. Results: losses (...), and if there are two the gradient of their sum, like the
 * logits. Attributes, both int32: blank, in 0..C-1; and divided, which is not 0 where this is one device's part of a
 * batch, so that others would wait for it: then what is wrong goes to stderr too. `call` is an xla_call; returns NULL,
 * or the error that create_error made: of labels and paddings that cannot be right, before anything is computed. */
void *ctcbind_xla_loss(void *call);

/* Arguments: those, and a direction like the logits. Result: the Hessian of the sum of the losses times the direction,
 * like the logits, as second_order.h has it. */
void *ctcbind_xla_product(void *call);

/* The loss with scores added to the lattice, as graph.h has them. Arguments: those of the loss, and then, where there
 * are any, bonuses (..., T, S) of S = 2L + 1 states, and priors (.., C), one for all of the axis before T: both in
 * float32 or float64. Results, like the logits: losses (...); or these, the gradient of their sum, and how many frames
 * are in each class (..., C); or, with bonuses, these and posteriors (..., T, S). Attributes: those of the loss;
 * topology, an int32 of graph.h; and weight, a float64, by which priors are multiplied. */
void *ctcbind_xla_lattice(void *call);

/* The threads of these calls from now on. */
void ctcbind_xla_threads(int32_t count);

#endif
