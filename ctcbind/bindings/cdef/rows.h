/* From csrc/rows.h, graph.h, batch.h and stop.h of this package; the C compiler checks these against them. */
enum { CTCBIND_ROWS_FLOAT32, CTCBIND_ROWS_FLOAT64, CTCBIND_ROWS_FLOAT16, CTCBIND_ROWS_BFLOAT16, ... };
enum { CTCBIND_ROWS_OK, CTCBIND_ROWS_NO_MEMORY, CTCBIND_ROWS_NAN, CTCBIND_ROWS_STOPPED, ... };
enum { CTCBIND_GRAPH_CTC, CTCBIND_GRAPH_SIMPLE, ... };

typedef struct ctcbind_rows {
    const void *data;
    int64_t stride_t, stride_c;
    int32_t T, C, dtype;
    ...;
} ctcbind_rows;

typedef struct ctcbind_graph {
    ctcbind_rows rows;
    const int32_t *labels;
    int32_t L, blank, topology;
    const double *prior;
    const double *bonus;
    int64_t bonus_t, bonus_s;
    ...;
} ctcbind_graph;

typedef struct ctcbind_rows_out {
    void *data;
    int64_t stride_t, stride_c;
    int32_t T, C, dtype;
    ...;
} ctcbind_rows_out;

typedef int (*ctcbind_ask)(void);

void ctcbind_repeat(void *structs, int64_t size, int32_t N, const int64_t *offsets, const int64_t *steps,
                    int32_t pointers);
void ctcbind_narrow(const double *values, float *to, int64_t count);
void ctcbind_set_frames(ctcbind_rows *rows, const int32_t *frames, int32_t N);
void ctcbind_set_labels(ctcbind_graph *graphs, const int32_t *labels, const int32_t *lengths, const int32_t *frames,
                        int32_t N);
