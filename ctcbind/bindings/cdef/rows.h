/* From csrc/rows.h, csrc/graph.h and csrc/stop.h of this package; the C compiler checks these against them. */
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
