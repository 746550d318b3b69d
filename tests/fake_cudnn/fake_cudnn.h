/* What the files of the fake libcudnn share: see fake_cudnn.c. All of it is hidden in the library but what is marked. */
#ifndef FAKE_CUDNN_H
#define FAKE_CUDNN_H

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum status { SUCCESS, NOT_INITIALIZED, BAD_PARAM, NULL_POINTER, TOO_SMALL, MISMATCH, NOT_SUPPORTED, ALLOC_FAILED,
              EXECUTION_FAILED, STATUSES };

enum kind { HANDLE, TENSOR, CTC, KINDS };

typedef struct object {
    enum kind kind;
    int id, alive;
    void *stream;                            /* HANDLE */
    int type, nb, dims[8], strides[8];       /* TENSOR */
    int comp, norm, mode, longest;           /* CTC */
    struct object *next;
} object;

/* calls.c: a call is begun, written down with its arguments, and finished. */
size_t version(void);
int number(enum status status);
const char *name_of(enum status status);
void begin(const char *call);
void put_ints(const char *key, const int *values, long count);
void put_pointer(const char *key, const void *value);
void put_int(const char *key, long long value);
void put_object(const char *key, const object *thing);
int injected(const char *call, int *status);
int finish(const char *call, enum status status, const char *reason);
int finish_forced(const char *call, int status);

#define FAIL_ON_DEMAND(call)                                                                                        \
    do {                                                                                                            \
        int forced_;                                                                                                \
        if (injected(call, &forced_)) return finish_forced(call, forced_);                                          \
    } while (0)

/* fake_cudnn.c: handles and descriptors. */
extern object *objects;
object *known(object *thing, enum kind kind);
void forget_objects(void);

/* ctc_loss.c: what was sent and should not have been. */
extern long hazards, poisoned;

#endif
