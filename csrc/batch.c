#include "batch.h"

void ctcbind_repeat(void *structs, int64_t size, int32_t N, const int64_t *offsets, const int64_t *steps,
                    int32_t pointers)
{
    const char *first = structs;
    for (int32_t n = 1; n < N; n++) {
        char *to = (char *)structs + n * size;
        memcpy(to, first, (size_t)size);
        for (int32_t i = 0; i < pointers; i++) {
            uintptr_t address; /* no pointer: of an empty array it may leave what there is */
            memcpy(&address, to + offsets[i], sizeof address);
            address += (uintptr_t)(n * steps[i]);
            memcpy(to + offsets[i], &address, sizeof address);
        }
    }
}

void ctcbind_narrow(const double *values, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = (float)values[i];
}

void ctcbind_set_frames(ctcbind_rows *rows, const int32_t *frames, int32_t N)
{
    for (int32_t n = 0; n < N; n++) rows[n].T = frames[n];
}

void ctcbind_set_labels(ctcbind_graph *graphs, const int32_t *labels, const int32_t *lengths, const int32_t *frames,
                        int32_t N)
{
    for (int32_t n = 0; n < N; n++) {
        graphs[n].rows.T = frames[n];
        graphs[n].labels = labels;
        graphs[n].L = lengths[n];
        labels += lengths[n];
    }
}
