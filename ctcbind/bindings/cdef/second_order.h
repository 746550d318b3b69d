/* From csrc/second_order.h of this package. */
typedef struct ctcbind_product {
    ctcbind_rows along;
    ctcbind_rows_out out;
    int32_t status;
    ...;
} ctcbind_product;

typedef struct ctcbind_hessian {
    void *data;
    int64_t T_out;
    int32_t dtype, status;
    ...;
} ctcbind_hessian;

int64_t ctcbind_hessian_bytes(int64_t T, int64_t L, int64_t C);

int ctcbind_products(const ctcbind_graph *graphs, ctcbind_product *products, int32_t N, int32_t threads,
                     ctcbind_ask stop);
int ctcbind_hessians(const ctcbind_graph *graphs, ctcbind_hessian *hessians, int32_t N, int32_t threads,
                     ctcbind_ask stop);
