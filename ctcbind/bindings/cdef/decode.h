/* From csrc/decode.h of this package. */
typedef double (*ctcbind_lm)(void *context, const int32_t *prefix, int32_t length, int32_t same);

typedef int (*ctcbind_lm_next)(void *context, int32_t count, const int32_t *lengths, const int32_t *labels,
                               double *scores);

typedef struct ctcbind_beam_options {
    int32_t width, n_best;
    int32_t blank, simple;
    double log_prune;
    ctcbind_lm lm;
    ctcbind_lm_next lm_next;
    void *context;
    ...;
} ctcbind_beam_options;

typedef struct ctcbind_beams {
    int32_t count;
    int64_t total;
    int32_t *lengths, *labels;
    double *log_p, *score;
    int32_t bad_frame, status;
    ...;
} ctcbind_beams;

int ctcbind_beam_searches(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams,
                          int32_t N, int32_t threads, ctcbind_ask stop);
void ctcbind_beams_free(ctcbind_beams *beams);

typedef struct ctcbind_reading {
    int32_t *labels;
    int32_t length, status;
    double log_p;
    ...;
} ctcbind_reading;

int ctcbind_readings(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *readings, int32_t N,
                     int32_t threads, ctcbind_ask stop);
/* const void *, of int32_t and int64_t: that takes Python's bytes as they are */
int64_t ctcbind_edit_distance(const void *a, int64_t a_length, const void *b, int64_t b_length, ctcbind_ask stop);
int64_t ctcbind_edits(const void *a, const void *a_lengths, const void *b, const void *b_lengths, int64_t pairs,
                      ctcbind_ask stop);

/* A ctcbind_lm that calls the Python function in its context. */
extern "Python" double ctcbind_ask_python(void *context, const int32_t *prefix, int32_t length, int32_t same);
/* The same for a ctcbind_lm_next. */
extern "Python" int ctcbind_ask_next_python(void *context, int32_t count, const int32_t *lengths, const int32_t *labels,
                                            double *scores);
