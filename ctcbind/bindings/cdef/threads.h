/* From csrc/threads.h of this package. */
typedef void (*ctcbind_gomp_parallel)(void (*work)(void *), void *arg, unsigned threads, unsigned flags);
typedef int (*ctcbind_omp_get)(void);
void ctcbind_borrow_threads(ctcbind_gomp_parallel parallel, ctcbind_omp_get number, ctcbind_omp_get most,
                            ctcbind_omp_get inside);
