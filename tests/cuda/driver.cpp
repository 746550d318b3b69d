/* The kernels (KERNELS names the file of their joined sources) behind one C function. */
#include "emulator.h"

#include KERNELS

struct Arguments {
    Problem problem;
    int64 number;
};

#define PLAIN(name) [](void *a) { name(((Arguments *)a)->problem); }
#define WITH_NUMBER(name) [](void *a) { name(((Arguments *)a)->problem, ((Arguments *)a)->number); }

static const struct {
    const char *name;
    emulator::Body body;
} kernels[] = {
    {"ctc_prepare", PLAIN(ctc_prepare)},
    {"ctc_reduce", PLAIN(ctc_reduce)},
#if CTC_K
    {"ctc_rows_by_warp", PLAIN(ctc_rows_by_warp)},
    {"ctc_rows_by_block", PLAIN(ctc_rows_by_block)},
    {"ctc_lattice", WITH_NUMBER(ctc_lattice)},
    {"ctc_gradient_by_warp", WITH_NUMBER(ctc_gradient_by_warp)},
    {"ctc_gradient_by_block", WITH_NUMBER(ctc_gradient_by_block)},
#else
    {"ctc_pack", PLAIN(ctc_pack)},
    {"ctc_move", PLAIN(ctc_move)},
    {"ctc_look", PLAIN(ctc_look)},
    {"ctc_judge", PLAIN(ctc_judge)},
    {"ctc_put", PLAIN(ctc_put)},
#endif
};

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
