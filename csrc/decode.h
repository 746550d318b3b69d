/* Labels from scores: the best path, prefix beam search, and the distance of two sequences. */
#ifndef CTCBIND_DECODE_H
#define CTCBIND_DECODE_H

#include "rows.h"
#include "samples.h"

/* What to add to the score of a prefix; NaN ends the search. `same`: how many labels at its beginning, the last one not
 * counted, are those of the prefix that this search asked about before it. */
typedef double (*ctcbind_lm)(void *context, const int32_t *prefix, int32_t length, int32_t same);

/* The same for all classes at once: `scores` [count][C] takes what each class adds to the score of each of `count`
 * prefixes as the next label. `labels` holds the prefixes one after the other. What is not 0 ends the search. */
typedef int (*ctcbind_lm_next)(void *context, int32_t count, const int32_t *lengths, const int32_t *labels,
                               double *scores);

typedef struct ctcbind_beam_options {
    int32_t width, n_best;   /* both at least 1 */
    int32_t blank, simple;   /* simple: repeats are not merged */
    double log_prune;        /* classes with a smaller ln y extend no prefix */
    ctcbind_lm lm;           /* NULL: none */
    ctcbind_lm_next lm_next; /* NULL: none; not both */
    void *context;           /* the first argument of either */
} ctcbind_beam_options;

/* Hypotheses, the best first. Hypothesis i is lengths[i] values of labels, after those of the ones before it. */
typedef struct ctcbind_beams {
    int32_t count;
    int64_t total;          /* of all labels */
    int32_t *lengths, *labels;
    double *log_p, *score;  /* ln p of the prefix's paths within the beam; the same with what lm adds */
    int32_t bad_frame;      /* where CTCBIND_ROWS_NAN is returned */
    int32_t status;         /* of one of many */
} ctcbind_beams;

/* Prefix beam search over all of the rows. `beams` needs ctcbind_beams_free whatever is returned. */
int ctcbind_beam_search(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams);

/* The same of N samples, whose beams are zeros before, and need to be freed whatever is returned: CTCBIND_ROWS_OK, or
 * CTCBIND_ROWS_STOPPED. `lm` and `lm_next` are asked on all threads at once. */
int ctcbind_beam_searches(const ctcbind_rows *rows, const ctcbind_beam_options *options, ctcbind_beams *beams,
                          int32_t N, int32_t threads, ctcbind_ask stop);
void ctcbind_beams_free(ctcbind_beams *beams);

typedef struct ctcbind_reading {
    int32_t *labels; /* room for T */
    int32_t length;  /* of the labels; where the status is CTCBIND_ROWS_NAN, the frame that holds one */
    int32_t status;
    double log_p;
} ctcbind_reading;

/* Of N samples the most probable class of each frame, the lowest on a tie, collapsed to labels, and the path's ln p.
 * CTCBIND_ROWS_OK, or CTCBIND_ROWS_STOPPED. */
int ctcbind_readings(const ctcbind_rows *rows, int32_t blank, int32_t simple, ctcbind_reading *readings, int32_t N,
                     int32_t threads, ctcbind_ask stop);

/* Insertions, deletions and substitutions that turn a into b, rows of any numbers; or less than 0:
 * -CTCBIND_ROWS_NO_MEMORY, -CTCBIND_ROWS_STOPPED. */
int64_t ctcbind_edit_distance(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length,
                              ctcbind_ask stop);

/* Their sum over so many pairs of rows, which lie one after the other in a and in b. */
int64_t ctcbind_edits(const int32_t *a, const int64_t *a_lengths, const int32_t *b, const int64_t *b_lengths,
                      int64_t pairs, ctcbind_ask stop);

#endif
