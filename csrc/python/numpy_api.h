/* Python's limited API, one build for all versions, and NumPy's, of which only what has been there since 1.22. NumPy's
 * table of functions is one for all files: direct.c, which defines CTCBIND_FILLS_NUMPY_API, has it filled. */
#ifndef CTCBIND_NUMPY_API_H
#define CTCBIND_NUMPY_API_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define NPY_NO_DEPRECATED_API NPY_TARGET_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL ctcbind_numpy_api
#ifndef CTCBIND_FILLS_NUMPY_API
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

/* &PyArray_Type, without the type itself, which the limited API leaves incomplete: GCC 9 refuses its name. */
#define CTCBIND_ARRAY_TYPE ((PyTypeObject *)PyArray_API[2])

#endif
