/* Second derivatives of each sample's loss with respect to its logits, in double. Prior and bonus are not looked at.
 *
 * The loss of a sample is the sum over t of logsumexp(x_t), less ln of the sum over paths of e^(their logits). Its
 * Hessian is that of the first term, the covariance of the classes drawn from each softmax, less that of the second:
 * the covariance of the indicators "the path is in class c at t". */
#ifndef CTCBIND_SECOND_ORDER_H
#define CTCBIND_SECOND_ORDER_H

#include "graph.h"
#include "samples.h"

/* The Hessian times `along`, which has the shape of the logits: O(T S). Zeros past the sample's own frames and where
 * there is no path; NaN, and a status of CTCBIND_ROWS_NAN, where a frame of the logits holds one. */
typedef struct ctcbind_product {
    ctcbind_rows along;
    ctcbind_rows_out out;
    int32_t status;
} ctcbind_product;

/* Element (t, c, u, d) of the Hessian goes to ((t*C + c)*T_out + u)*C + d, for t and u below T. The caller has set them
 * to zero, and zero they stay where there is no path. NaN as above. */
typedef struct ctcbind_hessian {
    void *data;
    int64_t T_out;
    int32_t dtype;  /* CTCBIND_ROWS_FLOAT32 or CTCBIND_ROWS_FLOAT64 */
    int32_t status;
} ctcbind_hessian;

/* The scratch memory that a sample's Hessian takes at most while it is computed, in bytes. */
int64_t ctcbind_hessian_bytes(int64_t T, int64_t L, int64_t C);

/* Of N samples: CTCBIND_ROWS_OK, or CTCBIND_ROWS_STOPPED; each has a status of its own. */
int ctcbind_products(const ctcbind_graph *graphs, ctcbind_product *products, int32_t N, int32_t threads,
                     ctcbind_ask stop);
int ctcbind_hessians(const ctcbind_graph *graphs, ctcbind_hessian *hessians, int32_t N, int32_t threads,
                     ctcbind_ask stop);

#endif
