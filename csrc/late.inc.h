/* Rows of the gradient that are written late: while the next row is read, so that memory is busy both ways. */

/* A row that is still to be written: to = factor * from, where from may be to. NULL: there is none. */
typedef struct {
    REAL *to;
    const REAL *from;
    REAL factor;
} FN(late);

/* A late row being written, a pair of vectors at a time. `from` may be overwritten behind the pair that was loaded
 * last. A pair is stored when the next one is loaded: a load waits for earlier stores whose addresses end in the same
 * bits, as they would here, since arrays mostly begin at such addresses. */
typedef struct {
    REAL *to; /* aligned for a vector; NULL: nothing to do */
    const REAL *from;
    REAL factor;
    int64_t end, rest; /* elements in whole pairs, and after them */
    REAL last[2 * W];
} FN(writer);

static inline void FN(write_begin)(FN(writer) *w, FN(late) late, int64_t C)
{
    int64_t lead = 0;
    w->to = NULL;
    w->from = NULL;
    w->factor = 0;
    w->end = w->rest = 0;
    memset(w->last, 0, sizeof w->last);
    if (!late.to) return;
    for (; lead < C && (uintptr_t)(late.to + lead) % (W * sizeof(REAL)); lead++)
        late.to[lead] = late.factor * late.from[lead];
    w->to = late.to + lead;
    w->from = late.from + lead;
    w->factor = late.factor;
    w->end = (C - lead) / (2 * W) * (2 * W);
    w->rest = C - lead - w->end;
    for (int64_t k = 0; k < w->rest; k++) w->last[k] = late.factor * w->from[w->end + k];
}

EACH_ITS_OWN void FN(put_down)(int stream, REAL *to, V(t) a)
{
    if (stream) V(stream)(to, a);
    else V(store)(to, a);
}

EACH_ITS_OWN void FN(write_pair)(int stream, const FN(writer) *w, int64_t c, V(t) held[2])
{
    V(t) f = V(set1)(w->factor);
    for (int k = 0; k < 2; k++) {
        V(t) next = V(mul)(f, V(load)(w->from + c + k * W));
        if (c) FN(put_down)(stream, w->to + c + (k - 2) * W, held[k]);
        held[k] = next;
    }
}

EACH_ITS_OWN void FN(write_end)(int stream, const FN(writer) *w, const V(t) held[2])
{
    int64_t k = 0;
    if (!w->to) return;
    REAL *to = w->to + w->end;
    for (int j = 0; j < 2 && w->end; j++) FN(put_down)(stream, to + (j - 2) * W, held[j]);
    for (; k + W <= w->rest; k += W) FN(put_down)(stream, to + k, V(load)(w->last + k));
    for (; k < w->rest; k++) to[k] = w->last[k];
}

static void FN(write_late)(FN(late) *late, int64_t C, int stream)
{
    FN(writer) writer;
    V(t) held[2] = {V(set1)(0), V(set1)(0)};
    FN(write_begin)(&writer, *late, C);
    for (int64_t c = 0; c < writer.end; c += 2 * W) FN(write_pair)(stream, &writer, c, held);
    FN(write_end)(stream, &writer, held);
    late->to = NULL;
}

/* Cache lines that a row shares with its neighbours cannot be written past the cache, and would be waited for. */
static inline void FN(prefetch_edges)(const REAL *g, int64_t C)
{
    if ((uintptr_t)g % 64) vec_prefetch(g);
    if ((uintptr_t)(g + C) % 64) vec_prefetch(g + C - 1);
}
