/* The kernels of one module behind one C function: KERNELS names the file of their joined sources, and ALL_KERNELS tells
 * of each whether it takes a number beside the problem. */
#include "emulator.h"

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
            error = emulator::launch(kernel.body, &arguments, grid, threads, shared, seed);
            return error.c_str();
        }
    error = "no such kernel";
    return error.c_str();
}
