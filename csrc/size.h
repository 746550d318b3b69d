/* How many bytes malloc is asked for. A long sample may need more than 32 bits can count: then more than there are. */
#ifndef CTCBIND_SIZE_H
#define CTCBIND_SIZE_H

#include <stddef.h>
#include <stdint.h>

static inline size_t ctcbind_size(uint64_t bytes) { return (size_t)bytes == bytes ? (size_t)bytes : SIZE_MAX; }

#endif
