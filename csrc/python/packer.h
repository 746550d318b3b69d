/* Labels and lengths that lie on the host, for a device. */
#ifndef CTCBIND_PACKER_H
#define CTCBIND_PACKER_H

#include "numpy_api.h"

/* A new reference to the type, which is called with (ntc, blank). Its `pack` takes the logits' shape, targets,
 * input_lengths and target_lengths; it answers None for what ctcbind_pack declines, else (bytes, their address, the
 * most labels of a sample): N label lengths, N input lengths and all labels, each an int32_t. */
PyObject *ctcbind_packer_type(void);

#endif
