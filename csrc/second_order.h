/* Second derivatives of one sample's loss with respect to its logits, in double. Prior and bonus are not looked at. */
#ifndef CTCBIND_SECOND_ORDER_H
#define CTCBIND_SECOND_ORDER_H

#include "graph.h"

/* out[t*C + c] = the Hessian times `along`, which has the shape of the logits: O(T S). All zeros where there is no
 * path; CTCBIND_ROWS_NAN, and nothing written, where a frame of the logits holds a NaN. */
int ctcbind_hvp(const ctcbind_graph *graph, const ctcbind_rows *along, double *out);

/* Element (t, c, u, d) of the Hessian goes to out[((t*C + c)*T_out + u)*C + d], for t and u below T. The caller has
 * set them to zero, and zero they stay where there is no path. */
int ctcbind_hessian(const ctcbind_graph *graph, double *out, int64_t T_out);

#endif
