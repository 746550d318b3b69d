/* From csrc/second_order.h of this package. */
int ctcbind_hvp(const ctcbind_graph *graph, const ctcbind_rows *along, double *out);
int ctcbind_hessian(const ctcbind_graph *graph, double *out, int64_t T_out);
