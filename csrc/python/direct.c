/* The short way from NumPy arrays to the engine: a batch that is plain and right is packed and run from here, as
 * Python would take longer over a small batch than the engine itself. Whatever is not plain, or not right, is
 * declined, and Python's own way takes it, or says what is wrong with it: no rule is worded here.
 *
 * Plain are arrays of NumPy's own type without gaps, sample after sample or in C order, and lists and tuples of ints.
 * Python's limited API, one build for all versions, and NumPy's, of which only what has been there since 1.22. */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define NPY_NO_DEPRECATED_API NPY_TARGET_VERSION
#include <math.h>
#include <numpy/arrayobject.h>
#include <stdlib.h>
#include <string.h>

#include "ctcbind.h"

enum { REDUCE_NONE, REDUCE_SUM, REDUCE_BATCH_MEAN, REDUCE_LABEL_MEAN };
enum { DTYPES = 4 };
/* Up to here a batch takes some microseconds, and the GIL is kept: to release it, and to take turns, takes as long. */
enum { SMALL_ROWS = 256, SMALL_CLASSES = 64 };

typedef struct {
    PyObject_HEAD
    ctcbind_problem problem;
    int (*loss)(const ctcbind_problem *, void *, size_t);
    void *workspace;
    size_t bytes;
    int ntc, reduction, zero_infinity, closed;
    long blank;
    Py_ssize_t large;
    int codes[DTYPES];                     /* CTCBIND_FLOAT32, ... */
    PyObject *dtypes, *loss_dtypes, *scalars; /* tuples in the same order; None is a dtype that no array has */
    PyObject *empty, *empty_large, *acquire, *release, *threads, *failed, *result, *name; /* the first may be None */
    int (*stop)(void);
    PyObject *state, *closing; /* one of the numbers below, in a bytearray; called where it is CLOSING in the end */
    int32_t own_threads; /* where `threads` answers None */
    int32_t *labels, *lengths; /* the second: N label lengths, N input lengths */
    double *weights;
    size_t labels_room, lengths_room, weights_room;
} direct_t;

/* What the workspace's user is doing, the same in plan.py. CLOSING: it was closed while at work. */
enum { IDLE, RUNNING, CLOSING };

/* Declined: not plain, or not right. -1 is an exception, as always. */
enum { NO = 0, YES = 1, RAISED = -1 };

static int reserve(void **at, size_t *room, size_t count, size_t size)
{
    if (count <= *room) return YES;
    void *moved = count > SIZE_MAX / size ? NULL : realloc(*at, count * size);
    if (!moved) {
        PyErr_NoMemory();
        return RAISED;
    }
    *at = moved;
    *room = count;
    return YES;
}
#define RESERVE(field, count) reserve((void **)&d->field, &d->field##_room, (size_t)(count), sizeof *d->field)

/* What is exactly NumPy's; else NULL. */
static PyArrayObject *as_array(PyObject *value) { return PyArray_CheckExact(value) ? (PyArrayObject *)value : NULL; }

static int is_integers(PyArrayObject *a)
{
    return PyTypeNum_ISINTEGER(PyArray_TYPE(a)) && PyArray_ISNOTSWAPPED(a);
}

static int is_unsigned(PyArrayObject *a) { return PyTypeNum_ISUNSIGNED(PyArray_TYPE(a)); }

/* Copies `count` integers of any type that lie `stride` bytes apart. NO if one is beyond 0..high, or is `never`. */
#define COPY(type)                                                                                            \
    do {                                                                                                      \
        if (stride == (Py_ssize_t)sizeof(type) && (uintptr_t)from % sizeof(type) == 0) {                      \
            const type *row = (const type *)from;                                                             \
            for (Py_ssize_t i = 0; i < count; i++) {                                                          \
                uint64_t value = (uint64_t)(int64_t)row[i];                                                   \
                wrong |= (value > high) | (value == never);                                                   \
                to[i] = (int32_t)value;                                                                       \
            }                                                                                                 \
        } else                                                                                                \
            for (Py_ssize_t i = 0; i < count; i++) {                                                          \
                type one;                                                                                     \
                memcpy(&one, from + i * stride, sizeof one);                                                  \
                uint64_t value = (uint64_t)(int64_t)one;                                                      \
                wrong |= (value > high) | (value == never);                                                   \
                to[i] = (int32_t)value;                                                                       \
            }                                                                                                 \
    } while (0)

static int copy(PyArrayObject *a, const char *from, Py_ssize_t count, Py_ssize_t stride, uint64_t high,
                uint64_t never, int32_t *to)
{
    int wrong = 0;
    switch (PyArray_ITEMSIZE(a) | (is_unsigned(a) ? 0 : 0x100)) {
    case 0x101: COPY(int8_t); break;
    case 0x102: COPY(int16_t); break;
    case 0x104: COPY(int32_t); break;
    case 0x108: COPY(int64_t); break;
    case 1: COPY(uint8_t); break;
    case 2: COPY(uint16_t); break;
    case 4: COPY(uint32_t); break;
    case 8: COPY(uint64_t); break;
    default: return NO;
    }
    return wrong ? NO : YES;
}
#undef COPY

/* How many entries of a row stand before its first negative one; -1 if one that is not negative follows it. */
#define UNPADDED(type)                                                                                        \
    do {                                                                                                      \
        type one;                                                                                             \
        for (Py_ssize_t i = 0; i < width; i++) {                                                              \
            memcpy(&one, from + i * stride, sizeof one);                                                      \
            if (one < 0) {                                                                                    \
                if (count < 0) count = i;                                                                     \
            } else if (count >= 0) return -1;                                                                 \
        }                                                                                                     \
    } while (0)

static Py_ssize_t unpadded(PyArrayObject *a, const char *from, Py_ssize_t width, Py_ssize_t stride)
{
    Py_ssize_t count = -1;
    if (is_unsigned(a)) return width;
    switch (PyArray_ITEMSIZE(a)) {
    case 1: UNPADDED(int8_t); break;
    case 2: UNPADDED(int16_t); break;
    case 4: UNPADDED(int32_t); break;
    case 8: UNPADDED(int64_t); break;
    default: return -1;
    }
    return count < 0 ? width : count;
}
#undef UNPADDED

static Py_ssize_t size_of_row(PyObject *row)
{
    return PyList_CheckExact(row) ? PyList_Size(row) : PyTuple_CheckExact(row) ? PyTuple_Size(row) : -1;
}

/* The same of a list or tuple of ints. */
static int copy_row(PyObject *row, Py_ssize_t count, uint64_t high, uint64_t never, int32_t *to)
{
    int list = PyList_CheckExact(row);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = list ? PyList_GetItem(row, i) : PyTuple_GetItem(row, i);
        int overflow;
        if (!item) return RAISED;
        if (!PyLong_CheckExact(item)) return NO;
        long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow || (uint64_t)value > high || (uint64_t)value == never) return NO;
        to[i] = (int32_t)value;
    }
    return YES;
}

/* N numbers in 0..high: lengths. */
static int read_lengths(PyObject *given, Py_ssize_t N, uint64_t high, int32_t *to)
{
    PyArrayObject *a = as_array(given);
    if (!a) return size_of_row(given) == N ? copy_row(given, N, high, UINT64_MAX, to) : NO;
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != N || !is_integers(a)) return NO;
    return copy(a, PyArray_DATA(a), N, PyArray_STRIDE(a, 0), high, UINT64_MAX, to);
}

/* One row of labels a sample: lists, tuples and arrays. */
static int read_rows(direct_t *d, PyObject *targets, Py_ssize_t N, uint64_t high, uint64_t never)
{
    Py_ssize_t total = 0;
    int list = PyList_CheckExact(targets), answer = YES;
    for (Py_ssize_t n = 0; n < N && answer == YES; n++) {
        PyObject *row = list ? PyList_GetItem(targets, n) : PyTuple_GetItem(targets, n);
        if (!row) return RAISED;
        PyArrayObject *a = as_array(row);
        Py_ssize_t count = a ? -1 : size_of_row(row);
        if (a && PyArray_NDIM(a) == 1 && is_integers(a)) count = PyArray_DIM(a, 0);
        if (count < 0 || count > INT32_MAX) answer = NO;
        else if ((answer = RESERVE(labels, total + count)) == YES) {
            answer = a ? copy(a, PyArray_DATA(a), count, PyArray_STRIDE(a, 0), high, never, d->labels + total)
                       : copy_row(row, count, high, never, d->labels + total);
            d->lengths[n] = (int32_t)count;
            total += count;
        }
    }
    return answer;
}

/* (N, L), padded behind the lengths or with negatives, or all labels in one row. */
static int read_array(direct_t *d, PyArrayObject *a, PyObject *given, Py_ssize_t N, uint64_t high, uint64_t never)
{
    int nd = PyArray_NDIM(a), answer;
    if (!is_integers(a) || nd < 1 || nd > 2) return NO;
    const npy_intp *shape = PyArray_DIMS(a), *strides = PyArray_STRIDES(a);
    const char *data = PyArray_DATA(a);
    Py_ssize_t total = 0, width = shape[nd - 1];
    int32_t *lengths = d->lengths;
    if (width > INT32_MAX || (nd == 2 && shape[0] != N)) return NO;
    if (given == Py_None) {
        if (nd == 1) return NO;
        for (Py_ssize_t n = 0; n < N; n++) {
            Py_ssize_t count = unpadded(a, data + n * strides[0], width, strides[1]);
            if (count < 0) return NO;
            lengths[n] = (int32_t)count;
        }
    } else if ((answer = read_lengths(given, N, (uint64_t)width, lengths)) != YES) return answer;
    for (Py_ssize_t n = 0; n < N; n++) total += lengths[n];
    if (nd == 1 && total != width) return NO;
    if ((answer = RESERVE(labels, total)) != YES) return answer;
    if (nd == 1) return copy(a, data, total, strides[0], high, never, d->labels);
    if (total == N * width && strides[0] == width * strides[1]) /* one row after the other */
        return copy(a, data, total, strides[1], high, never, d->labels);
    total = 0;
    for (Py_ssize_t n = 0; n < N && answer == YES; n++) {
        answer = copy(a, data + n * strides[0], lengths[n], strides[1], high, never, d->labels + total);
        total += lengths[n];
    }
    return answer;
}

/* Labels and lengths of the batch into d; the problem's sizes are set. */
static int pack(direct_t *d, PyObject *targets, PyObject *input_lengths, PyObject *target_lengths)
{
    ctcbind_problem *p = &d->problem;
    Py_ssize_t N = p->N, rows = size_of_row(targets);
    uint64_t high = (uint64_t)p->C - 1, never = (uint64_t)p->blank;
    int answer = RESERVE(lengths, 2 * N);
    if (answer == YES) answer = RESERVE(labels, 1);
    if (answer != YES) return answer;
    if (rows >= 0) {
        if (rows != N || target_lengths != Py_None) return NO;
        answer = read_rows(d, targets, N, high, never);
    } else {
        PyArrayObject *a = as_array(targets);
        answer = a ? read_array(d, a, target_lengths, N, high, never) : NO;
    }
    if (answer != YES) return answer;
    int32_t *frames = d->lengths + N;
    if (input_lengths != Py_None) answer = read_lengths(input_lengths, N, (uint64_t)p->T, frames);
    else
        for (Py_ssize_t n = 0; n < N; n++) frames[n] = p->T;
    p->labels = d->labels;
    p->label_lengths = d->lengths;
    p->input_lengths = frames;
    return answer;
}

/* What each sample counts in the reduced loss: as sample_weights of reduction.py. */
static int weigh(direct_t *d)
{
    ctcbind_problem *p = &d->problem;
    p->weights = NULL;
    if (d->reduction != REDUCE_BATCH_MEAN && d->reduction != REDUCE_LABEL_MEAN) return YES;
    if (RESERVE(weights, p->N) != YES) return RAISED;
    for (int32_t n = 0; n < p->N; n++) {
        int32_t count = d->reduction == REDUCE_LABEL_MEAN && d->lengths[n] > 1 ? d->lengths[n] : 1;
        d->weights[n] = 1.0 / ((double)count * (double)p->N);
    }
    p->weights = d->weights;
    return YES;
}

/* One more into a sum that nothing is rounded off: parts that do not overlap, the least first (Shewchuk 1997, as in
 * Python's math.fsum). Answers how many there are: of the 2098 bits that doubles stand for, no two have the same. */
static int add_exactly(double *parts, int count, double value)
{
    int kept = 0;
    for (int k = 0; k < count; k++) {
        double part = parts[k], large = fabs(value) < fabs(part) ? part : value, small = large == part ? value : part;
        double sum = large + small, rest = small - (sum - large);
        if (rest != 0) parts[kept++] = rest;
        value = sum;
    }
    parts[kept++] = value;
    return kept;
}

/* Rounded once, half to even. */
static double of_parts(const double *parts, int count)
{
    double sum = 0, rest = 0;
    while (count > 0 && rest == 0) {
        double before = sum, part = parts[--count];
        sum = before + part;
        rest = part - (sum - before);
    }
    if (count > 0 && ((rest < 0 && parts[count - 1] < 0) || (rest > 0 && parts[count - 1] > 0))) {
        double twice = 2 * rest, next = sum + twice;
        if (twice == next - sum) sum = next;
    }
    return sum;
}

/* The weighted sum, to the same bits as reduction.py's. */
static double reduced(const direct_t *d)
{
    enum { PARTS = 2100 };
    const ctcbind_problem *p = &d->problem;
    double parts[PARTS], plain = 0;
    int count = 0;
    for (int32_t n = 0; n < p->N; n++) {
        double loss = p->dtype == CTCBIND_FLOAT64 ? ((const double *)p->losses)[n] : ((const float *)p->losses)[n];
        if (p->weights) loss *= p->weights[n];
        plain += loss;
        if (isfinite(plain)) count = add_exactly(parts, count, loss);
    }
    double total = isfinite(plain) ? of_parts(parts, count) : plain;
    if (p->dtype != CTCBIND_FLOAT64 && total >= 0x1.ffffffp127) return INFINITY; /* what float32 rounds to inf */
    return total;
}

/* The gradient of a loss past its dtype is not 0 by itself. */
static void zero_infinities(const ctcbind_problem *p)
{
    size_t size = p->dtype == CTCBIND_FLOAT64 ? 8 : p->dtype == CTCBIND_FLOAT32 ? 4 : 2;
    for (int32_t n = 0; n < p->N; n++) {
        if (p->dtype == CTCBIND_FLOAT64) {
            double *loss = (double *)p->losses + n;
            if (*loss != INFINITY) continue;
            *loss = 0;
        } else {
            float *loss = (float *)p->losses + n;
            if (*loss != INFINITY) continue;
            *loss = 0;
        }
        for (int64_t t = 0; t < p->T && p->grad; t++) {
            char *row = (char *)p->grad + size * (size_t)(t * p->grad_t + n * p->grad_n);
            if (p->grad_c == 1) memset(row, 0, size * (size_t)p->C);
            else
                for (int64_t k = 0; k < p->C; k++) memset(row + size * (size_t)(k * p->grad_c), 0, size);
        }
    }
}

/* A new array, and where its elements are; by `empty`, or by NumPy itself where that is None. */
static PyObject *new_array(PyObject *empty, int nd, const npy_intp *shape, PyObject *dtype, void **data)
{
    PyObject *array = NULL;
    if (empty == Py_None) {
        Py_INCREF(dtype); /* which the next call takes */
        array = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)dtype, nd, shape, NULL, NULL, 0, NULL);
    } else {
        PyObject *sizes = PyArray_IntTupleFromIntp(nd, shape);
        if (sizes) array = PyObject_CallFunctionObjArgs(empty, sizes, dtype, NULL);
        Py_XDECREF(sizes);
    }
    if (array && !as_array(array)) {
        Py_CLEAR(array);
        PyErr_SetString(PyExc_TypeError, "what makes arrays has made none of NumPy's");
    }
    if (array) *data = PyArray_DATA((PyArrayObject *)array);
    return array;
}

/* A call: what it was given, what it makes, and how. */
typedef struct {
    PyArrayObject *logits;
    PyObject *targets, *input_lengths, *target_lengths;
    npy_intp shape[3]; /* of the logits, whatever Python makes of them meanwhile */
    npy_intp axes[3];  /* of those, the outermost in memory first */
    npy_intp steps[3]; /* from element to element along them */
    int index;         /* of the dtype among the known */
    int with_grad, small, threads;
    PyObject *losses, *grad;
    void *losses_at, *grad_at;
    double sum; /* the reduced loss */
} call_t;

/* Whether the logits lie without gaps, these axes outermost first; to c->axes and c->steps. */
static int lies_so(call_t *c, int first, int second, int third)
{
    const npy_intp *bytes = PyArray_STRIDES(c->logits), size = PyArray_ITEMSIZE(c->logits);
    const npy_intp axes[3] = {first, second, third};
    npy_intp step = 1;
    for (int k = 2; k >= 0; k--) {
        if (c->shape[axes[k]] > 1 && bytes[axes[k]] != step * size) return 0;
        c->axes[k] = axes[k];
        c->steps[axes[k]] = step;
        step *= c->shape[axes[k]];
    }
    return 1;
}

/* Three axes, none empty, of a known dtype; in C order or, as a gradient is made too, sample after sample. */
static int is_plain(const direct_t *d, call_t *c)
{
    PyArrayObject *a = c->logits;
    int t = d->ntc, n = !d->ntc;
    if (!a || PyArray_NDIM(a) != 3 || !(PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED)) return NO;
    for (int k = 0; k < 3; k++) {
        c->shape[k] = PyArray_DIM(a, k);
        if (c->shape[k] < 1 || c->shape[k] > INT32_MAX) return NO;
    }
    if (!lies_so(c, 0, 1, 2) && !lies_so(c, n, t, 2) && !lies_so(c, n, 2, t)) return NO;
    PyObject *dtype = (PyObject *)PyArray_DESCR(a);
    while (c->index < DTYPES && PyTuple_GetItem(d->dtypes, c->index) != dtype) c->index++;
    c->small = c->shape[0] * c->shape[1] <= SMALL_ROWS && c->shape[2] <= SMALL_CLASSES;
    return c->index < DTYPES;
}

static int describe(direct_t *d, const call_t *c)
{
    ctcbind_problem *p = &d->problem;
    int t = d->ntc, n = !d->ntc;
    p->T = (int32_t)c->shape[t];
    p->N = (int32_t)c->shape[n];
    p->C = (int32_t)c->shape[2];
    if (d->blank < -1 || d->blank >= p->C) return NO;
    p->blank = d->blank < 0 ? p->C - 1 : (int32_t)d->blank;
    p->logits_t = p->grad_t = c->steps[t];
    p->logits_n = p->grad_n = c->steps[n];
    p->logits_c = p->grad_c = c->steps[2];
    p->dtype = d->codes[c->index];
    p->threads = c->threads;
    p->stop = c->small ? NULL : d->stop; /* which runs Python, and a small call has not marked the plan as in use */
    p->logits = PyArray_DATA(c->logits);
    p->losses = c->losses_at;
    p->grad = c->grad_at;
    return YES;
}

static int ask_threads(const direct_t *d, call_t *c)
{
    PyObject *number = PyObject_CallNoArgs(d->threads);
    if (!number) return RAISED;
    long threads = number == Py_None ? d->own_threads : PyLong_AsLong(number);
    Py_DECREF(number);
    if (threads == -1 && PyErr_Occurred()) return RAISED;
    c->threads = (int)threads;
    return YES;
}

static int run(direct_t *d, int small)
{
    int status;
    if (small) status = d->loss(&d->problem, d->workspace, d->bytes);
    else {
        Py_BEGIN_ALLOW_THREADS
        status = d->loss(&d->problem, d->workspace, d->bytes);
        Py_END_ALLOW_THREADS
    }
    if (status == CTCBIND_OK) return YES;
    if (status == CTCBIND_SMALL) return NO; /* Python's own way makes the workspace grow */
    PyObject *raised = PyObject_CallFunction(d->failed, "i", status);
    Py_XDECREF(raised);
    if (raised) PyErr_SetString(PyExc_SystemError, "a failure was not raised");
    return RAISED;
}

/* The result's named tuple, without a call of Python's. */
static PyObject *make_result(direct_t *d, PyObject *losses, PyObject *grad)
{
    PyObject *fields = PyTuple_Pack(3, losses, grad, d->name), *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *result = NULL;
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    if (arguments) result = make((PyTypeObject *)d->result, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return result;
}

static int make_arrays(const direct_t *d, call_t *c)
{
    npy_intp N = c->shape[!d->ntc];
    if (c->with_grad) {
        PyObject *empty = PyArray_NBYTES(c->logits) < d->large ? d->empty : d->empty_large;
        npy_intp shape[3], back[3];
        for (int k = 0; k < 3; k++) {
            shape[k] = c->shape[c->axes[k]];
            back[c->axes[k]] = k;
        }
        c->grad = new_array(empty, 3, shape, PyTuple_GetItem(d->dtypes, c->index), &c->grad_at);
        if (c->grad && (back[0] || back[1] != 1)) {
            PyObject *made = c->grad;
            c->grad = PyArray_Transpose((PyArrayObject *)made, &(PyArray_Dims){back, 3});
            Py_DECREF(made);
        }
        if (!c->grad) return RAISED;
    }
    c->losses = new_array(d->empty, 1, &N, PyTuple_GetItem(d->loss_dtypes, c->index), &c->losses_at);
    return c->losses ? YES : RAISED;
}

/* What the plan's calls share is touched here alone. No Python runs before the engine is done. */
static int compute(direct_t *d, call_t *c)
{
    if (d->closed || !d->workspace) return NO;
    int answer = describe(d, c);
    if (answer == YES) answer = pack(d, c->targets, c->input_lengths, c->target_lengths);
    if (answer == YES) answer = weigh(d);
    if (answer == YES) answer = run(d, c->small);
    if (answer != YES) return answer;
    if (d->zero_infinity) zero_infinities(&d->problem);
    if (d->reduction != REDUCE_NONE) c->sum = reduced(d);
    return YES;
}

/* Python may run between a call's steps, and other threads: it takes the lock. NO is an answer too: another thread is
 * at work, or this one, further up. */
static int compute_in_turn(direct_t *d, call_t *c)
{
    PyObject *taken = PyObject_CallFunctionObjArgs(d->acquire, Py_False, NULL);
    if (!taken) return RAISED;
    int mine = taken == Py_True;
    Py_DECREF(taken);
    if (!mine) return NO;
    char *state = PyByteArray_AsString(d->state);
    PyObject *type, *value, *trace, *released, *closed = NULL;
    int idle = *state == IDLE, closing = 0, answer = NO;
    if (idle) {
        *state = RUNNING;
        if (!d->closed) answer = make_arrays(d, c);
        if (answer == YES) answer = ask_threads(d, c);
        if (answer == YES) answer = compute(d, c);
        closing = *state == CLOSING;
        *state = IDLE;
    }
    PyErr_Fetch(&type, &value, &trace);
    /* while it is this thread's turn: the next would compute in a workspace that is about to go */
    if (closing && !(closed = PyObject_CallNoArgs(d->closing))) {
        answer = RAISED;
        if (type) PyErr_Clear();
        else PyErr_Fetch(&type, &value, &trace);
    }
    if (!(released = PyObject_CallNoArgs(d->release))) answer = RAISED;
    Py_XDECREF(released);
    Py_XDECREF(closed);
    if (type) PyErr_Restore(type, value, trace);
    return answer;
}

/* With the GIL held from the first look at the plan to the last, there is nothing to take turns at. */
static int compute_at_once(direct_t *d, call_t *c)
{
    int answer = make_arrays(d, c);
    if (answer == YES) answer = *PyByteArray_AsString(d->state) == IDLE ? compute(d, c) : NO;
    return answer;
}

/* None is an answer too: the batch is declined. */
static PyObject *answer(direct_t *d, PyObject *const *given, Py_ssize_t count, int with_grad)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "four arguments: logits, targets, input_lengths, target_lengths");
        return NULL;
    }
    call_t c = {as_array(given[0]), given[1], given[2], given[3], .with_grad = with_grad, .threads = 1};
    PyObject *result = NULL;
    int done = is_plain(d, &c);
    if (done == YES) done = c.small ? compute_at_once(d, &c) : compute_in_turn(d, &c);
    if (done == NO) result = Py_NewRef(Py_None);
    if (done == YES && d->reduction != REDUCE_NONE) {
        PyObject *sum = PyFloat_FromDouble(c.sum);
        Py_DECREF(c.losses);
        c.losses = sum ? PyObject_CallFunctionObjArgs(PyTuple_GetItem(d->scalars, c.index), sum, NULL) : NULL;
        Py_XDECREF(sum);
    }
    if (done == YES && c.losses) result = with_grad ? make_result(d, c.losses, c.grad) : Py_NewRef(c.losses);
    Py_XDECREF(c.losses);
    Py_XDECREF(c.grad);
    return result;
}

static PyObject *direct_both(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    return answer((direct_t *)self, given, count, 1);
}

static PyObject *direct_loss(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    return answer((direct_t *)self, given, count, 0);
}

static PyObject *direct_workspace(PyObject *self, PyObject *given)
{
    direct_t *d = (direct_t *)self;
    Py_ssize_t address, bytes;
    if (!PyArg_ParseTuple(given, "nn:workspace", &address, &bytes)) return NULL;
    d->workspace = (void *)address;
    d->bytes = (size_t)bytes;
    return Py_NewRef(Py_None);
}

static PyObject *direct_close(PyObject *self, PyObject *unused)
{
    direct_t *d = (direct_t *)self;
    (void)unused;
    d->closed = 1;
    d->workspace = NULL;
    d->bytes = 0;
    return Py_NewRef(Py_None);
}

static void direct_dealloc(PyObject *self)
{
    direct_t *d = (direct_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(d->labels);
    free(d->lengths);
    free(d->weights);
    PyObject *held[] = {d->dtypes,  d->loss_dtypes, d->scalars, d->empty,  d->empty_large, d->acquire,
                        d->release, d->threads,     d->failed,  d->result, d->name, d->state, d->closing};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_XDECREF(held[i]);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *direct_new(PyTypeObject *type, PyObject *given, PyObject *named)
{
    Py_ssize_t loss, stop;
    (void)named;
    direct_t *d = (direct_t *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!d) return NULL;
    int read = PyArg_ParseTuple(given, "(nn)(iilii)(iiii)ni(OOO)(OOOOO!OOOOO):Direct", &loss, &stop, /* */
                                &d->ntc, &d->problem.topology, &d->blank, &d->reduction, &d->zero_infinity,
                                &d->codes[0], &d->codes[1], &d->codes[2], &d->codes[3], &d->large, /* */
                                &d->own_threads, /* */
                                &d->dtypes, &d->loss_dtypes, &d->scalars, /* */
                                &d->empty, &d->empty_large, &d->acquire, &d->release, &PyByteArray_Type,
                                &d->state, &d->closing, &d->threads, &d->failed, &d->result, &d->name);
    PyObject *held[] = {d->dtypes,  d->loss_dtypes, d->scalars, d->empty,  d->empty_large, d->acquire,
                        d->release, d->threads,     d->failed,  d->result, d->name, d->state, d->closing};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_XINCREF(held[i]);
    if (!read) {
        Py_DECREF(d);
        return NULL;
    }
    d->loss = (int (*)(const ctcbind_problem *, void *, size_t))loss;
    d->stop = (int (*)(void))stop;
    return (PyObject *)d;
}

static PyMethodDef methods[] = {
    {"both", (PyCFunction)(void (*)(void))direct_both, METH_FASTCALL, NULL},
    {"loss", (PyCFunction)(void (*)(void))direct_loss, METH_FASTCALL, NULL},
    {"workspace", direct_workspace, METH_VARARGS, NULL},
    {"close", direct_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, direct_new},
    {Py_tp_dealloc, direct_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"ctcbind.bindings._direct.Direct", sizeof(direct_t), 0, Py_TPFLAGS_DEFAULT, slots};

static int fill(PyObject *module)
{
    import_array1(-1); /* returns that */
    PyObject *type = PyType_FromSpec(&spec);
    int failed = type ? PyModule_AddObjectRef(module, "Direct", type) : -1;
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_direct", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__direct(void) { return PyModuleDef_Init(&definition); }
