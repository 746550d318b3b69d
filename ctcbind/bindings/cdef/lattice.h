/* From csrc/lattice.h of this package. */
typedef struct ctcbind_lattice {
    int64_t stride;
    double *log_alpha;
    double *log_beta;
    double *log_gamma;
    double *counts;
    double *softmax;
    double log_z;
    ...;
} ctcbind_lattice;

int ctcbind_lattice_run(const ctcbind_graph *graph, ctcbind_lattice *lattice);
