/* A sample in halves: forward through the first from the first row on, and through the second from the last row back.
 * The loss is known where they meet, and each then goes back to its beginning with what the other has found. */

enum { FN(NOTHING), FN(ONCE_MORE), FN(BACK) };

/* At the beginning of the scratch, followed by the labels in reverse order, and by the scratch of each half, or of the
 * whole where that is better. */
typedef struct {
    ctc_sample half[2];
    FN(work) work[2];
    int32_t outcome[2];
    int32_t cut_too_much[2];
    int32_t todo;
    double loss;
} FN(halves);

static uint64_t FN(control_bytes)(const ctc_extent *e)
{
    uint64_t used = 0;
    FN(take)(NULL, &used, sizeof(FN(halves)));
    FN(take)(NULL, &used, (uint64_t)e->L * sizeof(int32_t));
    return used;
}

static ctc_extent FN(extent_of_half)(const ctc_extent *e)
{
    ctc_extent half = *e;
    half.T = e->T / 2 + BLOCK;
    half.keep = e->keep / 2;
    return half;
}

static uint64_t FN(bytes)(const ctc_extent *e)
{
    uint64_t whole = FN(room)(e);
    if (!e->halved) return whole;
    ctc_extent half = FN(extent_of_half)(e);
    uint64_t both = 2 * FN(room)(&half);
    return FN(control_bytes)(e) + (whole > both ? whole : both);
}

static void FN(cut)(FN(halves) *h, const ctc_sample *s, int which)
{
    ctc_sample *half = &h->half[which];
    int64_t middle = s->T / (2 * BLOCK) * BLOCK, last = s->T - 1;
    int64_t size = (int64_t)ctcbind_bytes_of(s->dtype);
    *half = *s;
    half->T = (int32_t)middle;
    if (which == 0) return;
    int32_t *labels = (int32_t *)((unsigned char *)h + (sizeof *h + 63) / 64 * 64);
    for (int32_t i = 0; i < s->L; i++) labels[i] = s->labels[s->L - 1 - i];
    half->labels = labels;
    half->T = (int32_t)(s->T - middle);
    half->x = (const char *)s->x + last * s->x_t * size;
    half->x_t = -s->x_t;
    if (s->g) half->g = (char *)s->g + last * s->g_t * size;
    half->g_t = -s->g_t;
}

static void FN(half_forward)(FN(halves) *h, const ctc_sample *s, const ctc_extent *e, int which, int doubles)
{
    ctc_extent extent = FN(extent_of_half)(e);
    unsigned char *scratch = (unsigned char *)h + FN(control_bytes)(e) + (which ? FN(room)(&extent) : 0);
    FN(work) *w = &h->work[which];
    FN(cut)(h, s, which);
    w->grid = -1;
    w->careful = FN(needs_care)(s);
    w->limit = INFINITY;
    w->helps = 0;
    int outcome;
    do {
        FN(set_up)(w, &h->half[which], &extent, scratch, doubles);
        FN(list_used)(w);
        outcome = h->outcome[which] = FN(forward)(w);
        if (outcome == FN(SHARP)) doubles = 1;
        if (outcome == FN(WORSE)) w->expects = -1;
    } while (outcome == FN(SHARP) || outcome == FN(WORSE));
    if (outcome == FN(THROUGH) && !w->failed) BY_STATE(leave, w);
    if (s->stream) vec_fence();
}

/* Computes the sample whole, where halves will not do. */
static void FN(alone)(FN(halves) *h, const ctc_sample *s, const ctc_extent *e)
{
    h->loss = FN(whole)(s, e, (unsigned char *)h + FN(control_bytes)(e));
    h->todo = FN(NOTHING);
}

/* The meeting: the loss, and what is to be done next. more: this was the second try, and the last. */
static void FN(middle)(FN(halves) *h, const ctc_sample *s, const ctc_extent *e, int more)
{
    FN(work) *w = &h->work[0], *other = &h->work[1];
    if (h->outcome[0] == FN(GRID) || h->outcome[1] == FN(GRID)) {
        FN(alone)(h, s, e);
        return;
    }
    h->todo = FN(NOTHING);
    int failed = w->failed > other->failed ? w->failed : other->failed;
    h->loss = failed == FN(NOT_A_NUMBER) ? (double)NAN : (double)INFINITY;
    if (!failed) {
        int possible = BY_STATE(join, w, other), again = 0;
        if (possible) {
            h->loss = -(w->ln_p + (w->base + other->base));
            if (h->loss <= 0) h->loss = 0; /* never -0 */
            again = !FN(exact_enough)(s, h->loss, w->doubles && other->doubles);
        }
        for (int k = 0; k < 2; k++) again |= h->cut_too_much[k] = FN(cut_too_much)(&h->work[k], possible, h->loss);
        h->todo = again ? FN(ONCE_MORE) : FN(BACK);
        /* If both halves run again, the one that was right may leave out more this time. */
        for (int k = 0; k < 2 && again; k++) FN(expect_found)(&h->work[k], possible, h->loss);
        if ((again && more) || !FN(sums_will_do)(w, w->base + other->base, h->loss)) FN(alone)(h, s, e);
        if (again) return;
    }
    if (h->loss < (double)INFINITY) return;
    if (s->g) BY_TYPE(fill, s, 0, s->T, failed == FN(NOT_A_NUMBER) ? (double)NAN : 0);
    h->todo = FN(NOTHING);
}

static double FN(step)(const ctc_sample *s, const ctc_extent *e, void *scratch, int step)
{
    FN(halves) *h = scratch;
    int which = step % STEP_FIRST_AGAIN, more = step >= STEP_FIRST_AGAIN, meeting = which == STEP_MEET;
    if (!more) {
        int halved = s->halved && FN(feasible)(s);
        if (!meeting && halved) {
            h->work[which].expects = 0;
            FN(half_forward)(h, s, e, which, FN(needs_doubles)(s));
        }
        if (meeting && halved) FN(middle)(h, s, e, 0);
        if (meeting && !halved) FN(alone)(h, s, e);
        if (meeting && s->g) BY_TYPE(fill, s, s->T, s->rows, 0);
    } else if (step < STEP_FIRST_BACK) {
        if (h->todo != FN(ONCE_MORE)) return h->loss;
        if (meeting) FN(middle)(h, s, e, 1);
        else if (!h->work[which].doubles || h->cut_too_much[which]) FN(half_forward)(h, s, e, which, 1);
    } else if (h->todo == FN(BACK) && s->g) {
        h->half[which].slot = s->slot; /* another thread may have gone forward */
        FN(backward)(&h->work[which], &h->work[1 - which]);
    }
    return meeting ? h->loss : 0;
}

static double FN(sample)(const ctc_sample *s, const ctc_extent *e, void *scratch)
{
    static const int order[] = {STEP_FIRST,        STEP_SECOND,     STEP_MEET,        STEP_FIRST_AGAIN,
                                STEP_SECOND_AGAIN, STEP_MEET_AGAIN, STEP_SECOND_BACK, STEP_FIRST_BACK};
    double loss = 0;
    if (!s->halved) return FN(whole)(s, e, scratch);
    for (size_t k = 0; k < STEPS; k++) { /* what was last touched comes first on the way back */
        double value = FN(step)(s, e, scratch, order[k]);
        if (s->question && ctcbind_stopped(s->question, -1)) return (double)NAN; /* the step was left half done */
        if (order[k] % STEP_FIRST_AGAIN == STEP_MEET) loss = value;
    }
    return loss;
}
