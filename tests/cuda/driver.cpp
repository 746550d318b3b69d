/* The kernels of one module behind one C function: KERNELS names the file of their joined sources, and ALL_KERNELS tells
 * of each whether it takes a number beside the problem. */
#include "emulator.h"

#include <type_traits>

#include KERNELS

struct Arguments {
    Problem problem;
    int64 number;
};

#define PLAIN(name) [](void *a) { name(((Arguments *)a)->problem); }
#define WITH_NUMBER(name) [](void *a) { name(((Arguments *)a)->problem, ((Arguments *)a)->number); }

#define KERNEL(name, how) {#name, how(name)},
static const struct {
    const char *name;
    emulator::Body body;
} kernels[] = {ALL_KERNELS};

/* The name of an array that a device would not read where it lies, or null: the host reads numbers anywhere. */
static const char *misaligned(const Problem &p)
{
#define LIES(name, bytes) \
    if ((uintptr_t)p.name % (bytes)) return #name;
#define LIES_AS_ITS_TYPE(name) LIES(name, alignof(std::remove_pointer_t<decltype(p.name)>))
    LIES(labels, p.wide & 1 ? 8 : 4)
    LIES(label_lengths, p.wide & 2 ? 8 : 4)
    LIES(input_lengths, p.wide & 4 ? 8 : 4)
    /* for the lattice `element` is right and the type another; around cuDNN it is left at 0, and the type right */
    static const size_t sizes[] = {4, 8, 2, 2};
    const size_t told = sizes[p.element], own = alignof(std::remove_pointer_t<decltype(p.grad)>);
    LIES(logits, told < own ? told : own)
    LIES(grad, told < own ? told : own)
    LIES_AS_ITS_TYPE(losses)
    LIES_AS_ITS_TYPE(reduced)
    LIES_AS_ITS_TYPE(weights)
    LIES_AS_ITS_TYPE(clean)
    LIES_AS_ITS_TYPE(slot)
    LIES_AS_ITS_TYPE(lengths)
    LIES_AS_ITS_TYPE(status)
    LIES_AS_ITS_TYPE(strange)
    LIES_AS_ITS_TYPE(measures)
    LIES_AS_ITS_TYPE(emitted)
    LIES_AS_ITS_TYPE(blanks)
    LIES_AS_ITS_TYPE(lattice)
    LIES_AS_ITS_TYPE(middles)
    LIES_AS_ITS_TYPE(edges)
    LIES_AS_ITS_TYPE(tickets)
    LIES_AS_ITS_TYPE(raw)
    LIES_AS_ITS_TYPE(moved)
    LIES_AS_ITS_TYPE(packed)
    LIES_AS_ITS_TYPE(packed_lengths)
    LIES_AS_ITS_TYPE(costs)
    LIES_AS_ITS_TYPE(least)
    return nullptr;
}

static std::string error;

extern "C" size_t problem_size() { return sizeof(Problem); }

/* Returns what went wrong, or an empty string. */
extern "C" const char *launch_kernel(const char *name, unsigned grid, unsigned threads, size_t shared, unsigned seed,
                                     const void *problem, int64 number)
{
    for (auto &kernel : kernels)
        if (!strcmp(kernel.name, name)) {
            Arguments arguments;
            memcpy((void *)&arguments.problem, problem, sizeof arguments.problem);
            arguments.number = number;
            if (const char *array = misaligned(arguments.problem)) {
                error = std::string("misaligned: ") + array;
                return error.c_str();
            }
            error = emulator::launch(kernel.body, &arguments, grid, threads, shared, seed);
            return error.c_str();
        }
    error = "no such kernel";
    return error.c_str();
}
