#include "packer.h"
#include "packed.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    int ntc;
    long blank;
    ctcbind_packed packed;
} packer_t;

static int describe(const packer_t *with, PyObject *shape, ctcbind_problem *p)
{
    Py_ssize_t sizes[3];
    if (!PyTuple_Check(shape) || PyTuple_Size(shape) != 3) return NO;
    if (!PyArg_ParseTuple(shape, "nnn:shape", &sizes[0], &sizes[1], &sizes[2])) return RAISED;
    Py_ssize_t T = sizes[with->ntc], N = sizes[!with->ntc], C = sizes[2];
    if (T < 0 || T > INT32_MAX || N < 1 || N > INT32_MAX || C < 1 || C > INT32_MAX) return NO;
    if (with->blank < -1 || with->blank >= C) return NO;
    p->T = (int32_t)T;
    p->N = (int32_t)N;
    p->C = (int32_t)C;
    p->blank = with->blank < 0 ? p->C - 1 : (int32_t)with->blank;
    return YES;
}

static int32_t longest_of(const ctcbind_problem *p)
{
    int32_t longest = 0;
    for (int32_t n = 0; n < p->N; n++)
        if (longest < p->label_lengths[n]) longest = p->label_lengths[n];
    return longest;
}

/* Takes the reference. */
static PyObject *with_address(PyObject *bytes, int32_t longest)
{
    return Py_BuildValue("(Nni)", bytes, (Py_ssize_t)(intptr_t)PyBytes_AsString(bytes), (int)longest);
}

static PyObject *in_one_piece(const ctcbind_problem *p)
{
    size_t N = (size_t)p->N, total = 0;
    for (size_t n = 0; n < N; n++) total += (size_t)p->label_lengths[n];
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((2 * N + total) * sizeof(int32_t)));
    char *at = bytes ? PyBytes_AsString(bytes) : NULL;
    if (!at) return NULL;
    memcpy(at, p->label_lengths, N * sizeof(int32_t));
    memcpy(at + N * sizeof(int32_t), p->input_lengths, N * sizeof(int32_t));
    if (total) memcpy(at + 2 * N * sizeof(int32_t), p->labels, total * sizeof(int32_t));
    return with_address(bytes, longest_of(p));
}

static PyObject *packer_pack(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    packer_t *with = (packer_t *)self;
    ctcbind_problem problem = {0};
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "four arguments: shape, targets, input_lengths, target_lengths");
        return NULL;
    }
    int answer = describe(with, given[0], &problem);
    if (answer == YES) answer = ctcbind_pack(&with->packed, &problem, given[1], given[2], given[3]);
    if (answer == RAISED) return NULL;
    return answer == YES ? in_one_piece(&problem) : Py_NewRef(Py_None);
}

static PyObject *packer_lengths(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    packer_t *with = (packer_t *)self;
    ctcbind_problem problem = {0};
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "four arguments: shape, the most labels, input_lengths, target_lengths");
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(given[1]);
    if (most == -1 && PyErr_Occurred()) return NULL;
    int answer = describe(with, given[0], &problem);
    if (answer == YES && (most < 0 || most > INT32_MAX)) answer = NO;
    if (answer == YES) answer = ctcbind_pack_lengths(&with->packed, &problem, (int32_t)most, given[2], given[3]);
    if (answer == RAISED) return NULL;
    if (answer == NO) return Py_NewRef(Py_None);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)problem.label_lengths, 8 * (Py_ssize_t)problem.N);
    int32_t longest = given[3] == Py_None ? (int32_t)most : longest_of(&problem);
    return bytes ? with_address(bytes, longest) : NULL;
}

static PyObject *packer_new(PyTypeObject *type, PyObject *given, PyObject *named)
{
    (void)named;
    packer_t *made = (packer_t *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (made && !PyArg_ParseTuple(given, "pl:Packer", &made->ntc, &made->blank)) Py_CLEAR(made);
    return (PyObject *)made;
}

static void packer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ctcbind_packed_free(&((packer_t *)self)->packed);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"pack", (PyCFunction)(void (*)(void))packer_pack, METH_FASTCALL, NULL},
    {"lengths", (PyCFunction)(void (*)(void))packer_lengths, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, packer_new},
    {Py_tp_dealloc, packer_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"ctcbind.bindings._direct.Packer", sizeof(packer_t), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject *ctcbind_packer_type(void) { return PyType_FromSpec(&spec); }
