/* The prefixes of a beam search, as nodes of a tree: each is its parent and one label more. */
#ifndef CTCBIND_PREFIXES_H
#define CTCBIND_PREFIXES_H

#include <stdint.h>

enum { NONE = -1 };

typedef struct ctcbind_prefix {
    int32_t parent, label, length;
    int32_t next;                /* in the list of its bucket */
    int32_t uses;                /* children, and 1 while in the beam: freed at 0 */
    int32_t slot;                /* in the beam; NONE outside */
    double *scores;              /* of each extension by a language model, NaN: not asked; NULL outside the beam */
} ctcbind_prefix;

/* All zeros, but for `unused`, which is NONE, where there are none. */
typedef struct ctcbind_prefixes {
    ctcbind_prefix *nodes;
    int32_t room, used, unused;  /* unused: a list of freed nodes by `next` */
    int32_t *buckets;            /* `room` lists of nodes, by parent and label: a prefix may have as many children as
                                    the beam is wide */
} ctcbind_prefixes;

/* The parent and label of the empty prefix are NONE. NONE where there is no memory. */
int32_t ctcbind_prefix_new(ctcbind_prefixes *p, int32_t parent, int32_t label);

/* The same, where it is not there already. */
int32_t ctcbind_prefix_child(ctcbind_prefixes *p, int32_t parent, int32_t label);

/* One use less: a prefix without any goes, with all that hung on it alone. */
void ctcbind_prefix_release(ctcbind_prefixes *p, int32_t at);

void ctcbind_prefix_write(const ctcbind_prefixes *p, int32_t at, int32_t *labels);
void ctcbind_prefixes_free(ctcbind_prefixes *p);

#endif
