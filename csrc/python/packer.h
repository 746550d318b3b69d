/* Labels and lengths that lie on the host, for a device. */
#ifndef CTCBIND_PACKER_H
#define CTCBIND_PACKER_H

#include "numpy_api.h"

/* A new reference to the type, which is called with (ntc, blank). What its methods answer is None for what ctcbind_pack
 * declines, else (bytes, their address, the most labels of a sample), the bytes int32_t each:
 * `pack` (shape of the logits, targets, input_lengths, target_lengths): N label lengths, N input lengths, all labels;
 * `lengths` (shape, most labels of a sample, input_lengths, target_lengths): N label lengths and N input lengths, zeros
 * where None is given. */
PyObject *ctcbind_packer_type(void);

#endif
