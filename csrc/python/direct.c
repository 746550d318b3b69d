/* The short way from NumPy arrays to the engine: a batch that is plain and right is packed and run from here, as
 * Python would take longer over a small batch than the engine itself. Whatever is not plain, or not right, is
 * declined, and Python's own way takes it, or says what is wrong with it: no rule is worded here.
 *
 * Plain are arrays of NumPy's own type, and lists and tuples of integers. */
#define CTCBIND_FILLS_NUMPY_API
#include "packed.h"
#include "packer.h"

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
    ctcbind_packed packed;
} direct_t;

/* All objects that a plan holds. */
#define HELD(d)                                                                                               \
    {(d)->dtypes,  (d)->loss_dtypes, (d)->scalars, (d)->empty, (d)->empty_large, (d)->acquire, (d)->release,  \
     (d)->threads, (d)->failed,      (d)->result,  (d)->name,  (d)->state,       (d)->closing}

/* What the workspace's user is doing, the same in engines/turn.py. CLOSING: it was closed while at work. */
enum { IDLE, RUNNING, CLOSING };

/* A new array, and where its elements are; by `empty`, or by NumPy itself where that is None. */
static PyObject *new_array(PyObject *empty, int nd, const npy_intp *shape, PyObject *dtype, void **data)
{
    PyObject *array = NULL;
    if (empty == Py_None) {
        Py_INCREF(dtype); /* which the next call takes */
        array = PyArray_NewFromDescr(CTCBIND_ARRAY_TYPE, (PyArray_Descr *)dtype, nd, shape, NULL, NULL, 0, NULL);
    } else {
        PyObject *sizes = PyArray_IntTupleFromIntp(nd, shape);
        if (sizes) array = PyObject_CallFunctionObjArgs(empty, sizes, dtype, NULL);
        Py_XDECREF(sizes);
    }
    if (array && !ctcbind_as_array(array)) {
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
    npy_intp steps[3]; /* from element to element along them */
    npy_intp axes[3];  /* of the gradient, the outermost in memory first */
    npy_intp grad_steps[3];
    int index;         /* of the dtype among the known */
    int with_grad, small, threads;
    PyObject *losses, *grad;
    void *losses_at, *grad_at;
    double sum; /* the reduced loss */
} call_t;

/* Gives the gradient this order in memory; whether the logits have it too, and no gaps. */
static int lies_so(call_t *c, int first, int second, int third)
{
    const npy_intp *bytes = PyArray_STRIDES(c->logits), size = PyArray_ITEMSIZE(c->logits);
    const npy_intp axes[3] = {first, second, third};
    npy_intp step = 1;
    int so = 1;
    for (int k = 2; k >= 0; k--) {
        so &= c->shape[axes[k]] == 1 || bytes[axes[k]] == step * size;
        c->axes[k] = axes[k];
        c->grad_steps[axes[k]] = step;
        step *= c->shape[axes[k]];
    }
    return so;
}

/* The gradient lies in C order or, where the logits do, sample after sample. NO where logits lie between elements. */
static int lay_out(const direct_t *d, call_t *c)
{
    const npy_intp *bytes = PyArray_STRIDES(c->logits), size = PyArray_ITEMSIZE(c->logits);
    int t = d->ntc, n = !d->ntc;
    int alike = lies_so(c, 0, 1, 2) || lies_so(c, n, t, 2) || lies_so(c, n, 2, t);
    if (!alike) lies_so(c, 0, 1, 2);
    for (int k = 0; k < 3; k++) {
        if (!alike && bytes[k] % size) return NO;
        c->steps[k] = alike ? c->grad_steps[k] : bytes[k] / size;
    }
    return YES;
}

/* Three axes, none empty, of a known dtype. */
static int is_plain(const direct_t *d, call_t *c)
{
    PyArrayObject *a = c->logits;
    if (!a || PyArray_NDIM(a) != 3 || !(PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED)) return NO;
    for (int k = 0; k < 3; k++) {
        c->shape[k] = PyArray_DIM(a, k);
        if (c->shape[k] < 1 || c->shape[k] > INT32_MAX) return NO;
    }
    PyObject *dtype = (PyObject *)PyArray_DESCR(a);
    while (c->index < DTYPES && PyTuple_GetItem(d->dtypes, c->index) != dtype) c->index++;
    c->small = c->shape[0] * c->shape[1] <= SMALL_ROWS && c->shape[2] <= SMALL_CLASSES;
    return c->index < DTYPES ? lay_out(d, c) : NO;
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
    p->logits_t = c->steps[t];
    p->logits_n = c->steps[n];
    p->logits_c = c->steps[2];
    p->grad_t = c->grad_steps[t];
    p->grad_n = c->grad_steps[n];
    p->grad_c = c->grad_steps[2];
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
    if (answer == YES) answer = ctcbind_pack(&d->packed, &d->problem, c->targets, c->input_lengths, c->target_lengths);
    if (answer == YES) answer = ctcbind_pack_weights(&d->packed, &d->problem, d->reduction);
    if (answer == YES) answer = run(d, c->small);
    if (answer != YES) return answer;
    if (d->zero_infinity) ctcbind_zero_infinities(&d->problem);
    if (d->reduction != REDUCE_NONE) c->sum = ctcbind_reduced(&d->problem);
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
    call_t c = {ctcbind_as_array(given[0]), given[1], given[2], given[3], .with_grad = with_grad, .threads = 1};
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
    ctcbind_packed_free(&d->packed);
    PyObject *held[] = HELD(d);
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
    PyObject *held[] = HELD(d);
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
    PyObject *type = PyType_FromSpec(&spec), *packer = ctcbind_packer_type();
    int failed = type && packer ? PyModule_AddObjectRef(module, "Direct", type) : -1;
    if (!failed) failed = PyModule_AddObjectRef(module, "Packer", packer);
    Py_XDECREF(packer);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_direct", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__direct(void) { return PyModuleDef_Init(&definition); }
