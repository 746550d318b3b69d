#include "reduction.h"

#include <math.h>
#include <string.h>

void ctcbind_sample_weights(const ctcbind_problem *p, int reduction, double *weights)
{
    for (int32_t n = 0; n < p->N; n++) {
        int32_t count = reduction == REDUCE_LABEL_MEAN && p->label_lengths[n] > 1 ? p->label_lengths[n] : 1;
        weights[n] = 1.0 / ((double)count * (double)p->N);
    }
}

/* One more into a sum that nothing is rounded off: parts that do not overlap, the least first (Shewchuk 1997, as in
 * Python's math.fsum). Answers how many there are: of the 2098 bits that doubles stand for, no two have the same. */
static int add_exactly(double *parts, int count, double value)
{
    int kept = 0;
    for (int k = 0; k < count; k++) {
        double part = parts[k], large = fabs(value) < fabs(part) ? part : value, small = large == part ? value : part;
        double sum = large + small, rest = small - (sum - large);
        if (rest != 0) parts[kept++] = rest;
        value = sum;
    }
    parts[kept++] = value;
    return kept;
}

/* Rounded once, half to even. */
static double of_parts(const double *parts, int count)
{
    double sum = 0, rest = 0;
    while (count > 0 && rest == 0) {
        double before = sum, part = parts[--count];
        sum = before + part;
        rest = part - (sum - before);
    }
    if (count > 0 && ((rest < 0 && parts[count - 1] < 0) || (rest > 0 && parts[count - 1] > 0))) {
        double twice = 2 * rest, next = sum + twice;
        if (twice == next - sum) sum = next;
    }
    return sum;
}

double ctcbind_reduced(const ctcbind_problem *p)
{
    enum { PARTS = 2100 };
    double parts[PARTS], plain = 0;
    int count = 0;
    for (int32_t n = 0; n < p->N; n++) {
        double loss = p->dtype == CTCBIND_FLOAT64 ? ((const double *)p->losses)[n] : ((const float *)p->losses)[n];
        if (p->weights) loss *= p->weights[n];
        plain += loss;
        if (isfinite(plain)) count = add_exactly(parts, count, loss);
    }
    double total = isfinite(plain) ? of_parts(parts, count) : plain;
    if (p->dtype != CTCBIND_FLOAT64 && total >= 0x1.ffffffp127) return INFINITY; /* what float32 rounds to inf */
    return total;
}

/* The gradient of a loss past its dtype is not 0 by itself. */
void ctcbind_zero_infinities(const ctcbind_problem *p)
{
    size_t size = ctcbind_bytes_of(p->dtype);
    for (int32_t n = 0; n < p->N; n++) {
        if (p->dtype == CTCBIND_FLOAT64) {
            double *loss = (double *)p->losses + n;
            if (*loss != INFINITY) continue;
            *loss = 0;
        } else {
            float *loss = (float *)p->losses + n;
            if (*loss != INFINITY) continue;
            *loss = 0;
        }
        for (int64_t t = 0; t < p->T && p->grad; t++) {
            char *row = (char *)p->grad + size * (size_t)(t * p->grad_t + n * p->grad_n);
            if (p->grad_c == 1) memset(row, 0, size * (size_t)p->C);
            else
                for (int64_t k = 0; k < p->C; k++) memset(row + size * (size_t)(k * p->grad_c), 0, size);
        }
    }
}
