/* Memory that is asked for once and cut into arrays. */
#ifndef CTCBIND_SIZE_H
#define CTCBIND_SIZE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* How many bytes malloc is asked for. A long sample may need more than 32 bits can count: then more than there are. */
static inline size_t ctcbind_size(uint64_t bytes) { return (size_t)bytes == bytes ? (size_t)bytes : SIZE_MAX; }

/* The next so many doubles of what is left. */
static inline double *ctcbind_take(double **left, int64_t count)
{
    double *taken = *left;
    *left += count;
    return taken;
}

static inline double *ctcbind_take_zeros(double **left, int64_t count)
{
    return memset(ctcbind_take(left, count), 0, (size_t)count * sizeof **left);
}

#endif
