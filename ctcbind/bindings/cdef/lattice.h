/* From csrc/lattice.h of this package. */
typedef struct ctcbind_lattice {
    void *log_alpha, *log_beta, *log_gamma, *gamma;
    int64_t T_out, S_out;
    int32_t dtype, status;
    ctcbind_rows_out grad;
    double *counts;
    double log_z;
    ...;
} ctcbind_lattice;

int ctcbind_lattices(const ctcbind_graph *graphs, ctcbind_lattice *lattices, int32_t N, int32_t threads,
                     ctcbind_ask stop);
