#include "rows.h"

enum { BLOCK = 256 };

/* e^(x - top) for x <= top, to about one unit in the last place, with no call and no branch so that compilers make
 * vectors of it; below top - 700 what is that far down counts as e^-700. */
CTCBIND_CLONES static void exps(const double *restrict x, double top, int32_t count, double *restrict to)
{
    static const double ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b39p-40;
    for (int32_t i = 0; i < count; i++) {
        double a = x[i] - top;
        a = a < -700 ? -700 : a;
        double shifted = a * 0x1.71547652b82fep0 + 0x1.8p52; /* the low bits hold a / ln 2, rounded */
        double n = shifted - 0x1.8p52, r = a - n * ln2_high - n * ln2_low;
        double p = 1.0 / 6227020800;
        p = p * r + 1.0 / 479001600;
        p = p * r + 1.0 / 39916800;
        p = p * r + 1.0 / 3628800;
        p = p * r + 1.0 / 362880;
        p = p * r + 1.0 / 40320;
        p = p * r + 1.0 / 5040;
        p = p * r + 1.0 / 720;
        p = p * r + 1.0 / 120;
        p = p * r + 1.0 / 24;
        p = p * r + 1.0 / 6;
        p = p * r + 0.5;
        p = p * r + 1;
        p = p * r + 1;
        uint64_t bits, scale;
        memcpy(&bits, &p, sizeof bits);
        memcpy(&scale, &shifted, sizeof scale);
        bits += scale << 52;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

double ctcbind_log_sum_exp(const double *row, int32_t C, double top)
{
    double values[BLOCK], sums[4] = {0, 0, 0, 0};
    for (int32_t at = 0; at < C; at += BLOCK) {
        int32_t count = C - at < BLOCK ? C - at : BLOCK;
        exps(row + at, top, count, values);
        for (int32_t i = 0; i < count; i++) sums[i & 3] += values[i];
    }
    return log(sums[0] + sums[1] + (sums[2] + sums[3]));
}
