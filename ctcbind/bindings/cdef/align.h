/* From csrc/align.h of this package. */
typedef struct ctcbind_alignment {
    int32_t *states;
    int32_t *starts, *ends;
    double *scores;
    double log_p;
    ...;
} ctcbind_alignment;

size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C);
int ctcbind_align(const ctcbind_graph *graph, ctcbind_alignment *alignment);
