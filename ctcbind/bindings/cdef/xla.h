/* From csrc/xla.h of this package. */
void *ctcbind_xla_loss(void *call);
void *ctcbind_xla_product(void *call);
void *ctcbind_xla_lattice(void *call);
void ctcbind_xla_threads(int32_t count);
