/* From csrc/ctcbind.h of this package; the C compiler checks these against it. */
enum { CTCBIND_FLOAT32, CTCBIND_FLOAT64, CTCBIND_FLOAT16, CTCBIND_BFLOAT16, ... };
enum { CTCBIND_TOPOLOGY_CTC, CTCBIND_TOPOLOGY_SIMPLE, ... };
enum { CTCBIND_OK, CTCBIND_NO_MEMORY, CTCBIND_INVALID, CTCBIND_STOPPED, CTCBIND_SMALL, ... };

typedef struct ctcbind_problem {
    const void *logits;
    int64_t logits_t, logits_n, logits_c;
    void *grad;
    int64_t grad_t, grad_n, grad_c;
    void *losses;
    const int32_t *labels;
    const int32_t *label_lengths;
    const int32_t *input_lengths;
    const double *weights;
    int32_t T, N, C, blank;
    int32_t dtype, topology;
    int32_t threads;
    int (*stop)(void);
    ...;
} ctcbind_problem;

size_t ctcbind_workspace_size(const ctcbind_problem *problem);
void *ctcbind_workspace_new(size_t bytes);
void ctcbind_workspace_free(void *workspace);
int ctcbind_loss(const ctcbind_problem *problem, void *workspace, size_t workspace_bytes);
const char *ctcbind_isa(void);

/* In build_ffi.py: ctcbind_loss with the integers in one row. Where the workspace is too small nothing is done, and
   the bytes that it needs are returned as a negative number. */
int64_t ctcbind_run(ctcbind_problem *problem, const void *logits, void *grad, void *losses, const int32_t *integers,
                    int64_t labels, const double *weights, void *workspace, size_t workspace_bytes);

/* Not in the header: what `stop` is, in bindings/native_stop.py. */
extern "Python" int ctcbind_interrupted(void);
