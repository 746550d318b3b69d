/* One block: from one loss a sample to one number, so that a captured graph holds no memory of anybody else's. */

extern "C" __global__ void __launch_bounds__(THREADS) ctc_reduce(const Problem p)
{
    double sum = 0;
    for (int64 n = threadIdx.x; n < p.N; n += THREADS) {
        Real loss = p.losses[n];
        if (p.zeroing && loss == INF) {
            p.losses[n] = loss = 0;
            /* the gradient of a loss past its dtype is not 0 by itself; that is rare, and worth no threads */
            if (p.grad && !(p.status[n] & (INFEASIBLE | NO_PATH)))
                for (int64 i = 0; i < p.T * p.C; i++) p.grad[i / p.C * p.g_t + n * p.g_n + i % p.C] = stored(0);
        }
        sum += (double)loss * weight_of(p, n, p.lengths[n]);
    }
    sum = over_block(sum, total_double, dynamic_shared);
    if (threadIdx.x == 0 && p.reduced) *p.reduced = (Real)sum;
}
