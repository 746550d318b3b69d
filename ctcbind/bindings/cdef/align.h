/* From csrc/align.h of this package. */
typedef struct ctcbind_alignment {
    int32_t *states;
    int32_t *classes;
    int32_t *starts, *ends;
    double *scores;
    int64_t T_out, L_out;
    double log_p;
    int32_t status;
    ...;
} ctcbind_alignment;

size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C);
int ctcbind_alignments(const ctcbind_graph *graphs, ctcbind_alignment *alignments, int32_t N, int32_t threads,
                       ctcbind_ask stop);
