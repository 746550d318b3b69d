#include "packed.h"

#include <stdlib.h>
#include <string.h>

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
#define RESERVE(in, field, count) \
    reserve((void **)&(in)->field, &(in)->field##_room, (size_t)(count), sizeof *(in)->field)

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

/* An integer of one of NumPy's own types, whose conversion runs no Python. A timedelta64 counts as one there. */
static int is_numpys(PyObject *item)
{
    return PyArray_IsScalar(item, Integer) && !PyArray_IsScalar(item, Timedelta) &&
           !(PyType_GetFlags(Py_TYPE(item)) & Py_TPFLAGS_HEAPTYPE);
}

static int read_int(PyObject *item, uint64_t *to)
{
    int overflow, plain = PyLong_CheckExact(item);
    if (!plain && !is_numpys(item)) return NO;
    PyObject *number = plain ? Py_NewRef(item) : PyNumber_Index(item);
    if (!number) return RAISED;
    *to = (uint64_t)PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    return overflow ? NO : YES;
}

/* The same of a list or tuple of integers. */
static int copy_row(PyObject *row, Py_ssize_t count, uint64_t high, uint64_t never, int32_t *to)
{
    int list = PyList_CheckExact(row), answer;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = list ? PyList_GetItem(row, i) : PyTuple_GetItem(row, i);
        uint64_t value;
        if (!item) return RAISED;
        if ((answer = read_int(item, &value)) != YES) return answer;
        if (value > high || value == never) return NO;
        to[i] = (int32_t)value;
    }
    return YES;
}

/* N numbers in 0..high: lengths. */
static int read_lengths(PyObject *given, Py_ssize_t N, uint64_t high, int32_t *to)
{
    PyArrayObject *a = ctcbind_as_array(given);
    if (!a) return size_of_row(given) == N ? copy_row(given, N, high, UINT64_MAX, to) : NO;
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != N || !is_integers(a)) return NO;
    return copy(a, PyArray_DATA(a), N, PyArray_STRIDE(a, 0), high, UINT64_MAX, to);
}

/* One row of labels a sample: lists, tuples and arrays. */
static int read_rows(ctcbind_packed *to, PyObject *targets, Py_ssize_t N, uint64_t high, uint64_t never)
{
    Py_ssize_t total = 0;
    int list = PyList_CheckExact(targets), answer = YES;
    for (Py_ssize_t n = 0; n < N && answer == YES; n++) {
        PyObject *row = list ? PyList_GetItem(targets, n) : PyTuple_GetItem(targets, n);
        if (!row) return RAISED;
        PyArrayObject *a = ctcbind_as_array(row);
        Py_ssize_t count = a ? -1 : size_of_row(row);
        if (a && PyArray_NDIM(a) == 1 && is_integers(a)) count = PyArray_DIM(a, 0);
        if (count < 0 || count > INT32_MAX) answer = NO;
        else if ((answer = RESERVE(to, labels, total + count)) == YES) {
            answer = a ? copy(a, PyArray_DATA(a), count, PyArray_STRIDE(a, 0), high, never, to->labels + total)
                       : copy_row(row, count, high, never, to->labels + total);
            to->lengths[n] = (int32_t)count;
            total += count;
        }
    }
    return answer;
}

/* (N, L), padded behind the lengths or with negatives, or all labels in one row. */
static int read_array(ctcbind_packed *to, PyArrayObject *a, PyObject *given, Py_ssize_t N, uint64_t high,
                      uint64_t never)
{
    int nd = PyArray_NDIM(a), answer;
    if (!is_integers(a) || nd < 1 || nd > 2) return NO;
    const npy_intp *shape = PyArray_DIMS(a), *strides = PyArray_STRIDES(a);
    const char *data = PyArray_DATA(a);
    Py_ssize_t total = 0, width = shape[nd - 1];
    int32_t *lengths = to->lengths;
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
    if ((answer = RESERVE(to, labels, total)) != YES) return answer;
    if (nd == 1) return copy(a, data, total, strides[0], high, never, to->labels);
    if (total == N * width && strides[0] == width * strides[1]) /* one row after the other */
        return copy(a, data, total, strides[1], high, never, to->labels);
    total = 0;
    for (Py_ssize_t n = 0; n < N && answer == YES; n++) {
        answer = copy(a, data + n * strides[0], lengths[n], strides[1], high, never, to->labels + total);
        total += lengths[n];
    }
    return answer;
}

int ctcbind_pack(ctcbind_packed *to, ctcbind_problem *p, PyObject *targets, PyObject *input_lengths,
                 PyObject *target_lengths)
{
    Py_ssize_t N = p->N, rows = size_of_row(targets);
    uint64_t high = (uint64_t)p->C - 1, never = (uint64_t)p->blank;
    int answer = RESERVE(to, lengths, 2 * N);
    if (answer == YES) answer = RESERVE(to, labels, 1);
    if (answer != YES) return answer;
    if (rows >= 0) {
        if (rows != N || target_lengths != Py_None) return NO;
        answer = read_rows(to, targets, N, high, never);
    } else {
        PyArrayObject *a = ctcbind_as_array(targets);
        answer = a ? read_array(to, a, target_lengths, N, high, never) : NO;
    }
    if (answer != YES) return answer;
    int32_t *frames = to->lengths + N;
    if (input_lengths != Py_None) answer = read_lengths(input_lengths, N, (uint64_t)p->T, frames);
    else
        for (Py_ssize_t n = 0; n < N; n++) frames[n] = p->T;
    p->labels = to->labels;
    p->label_lengths = to->lengths;
    p->input_lengths = frames;
    return answer;
}

int ctcbind_pack_lengths(ctcbind_packed *to, ctcbind_problem *p, int32_t most, PyObject *input_lengths,
                         PyObject *target_lengths)
{
    Py_ssize_t N = p->N;
    int answer = RESERVE(to, lengths, 2 * N);
    if (answer != YES) return answer;
    memset(to->lengths, 0, 2 * (size_t)N * sizeof *to->lengths);
    if (target_lengths != Py_None) answer = read_lengths(target_lengths, N, (uint64_t)most, to->lengths);
    if (answer == YES && input_lengths != Py_None)
        answer = read_lengths(input_lengths, N, (uint64_t)p->T, to->lengths + N);
    p->label_lengths = to->lengths;
    p->input_lengths = to->lengths + N;
    return answer;
}

int ctcbind_pack_weights(ctcbind_packed *to, ctcbind_problem *p, int reduction)
{
    p->weights = NULL;
    if (reduction != REDUCE_BATCH_MEAN && reduction != REDUCE_LABEL_MEAN) return YES;
    if (RESERVE(to, weights, p->N) != YES) return RAISED;
    ctcbind_sample_weights(p, reduction, to->weights);
    p->weights = to->weights;
    return YES;
}

void ctcbind_packed_free(ctcbind_packed *packed)
{
    free(packed->labels);
    free(packed->lengths);
    free(packed->weights);
}
