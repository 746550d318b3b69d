#include "prefixes.h"

#include <stdlib.h>

#include "size.h"

/* `room` is a power of two. */
static int32_t *bucket_of(const ctcbind_prefixes *p, int32_t parent, int32_t label)
{
    uint64_t key = (uint64_t)(uint32_t)parent << 32 | (uint32_t)label;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio: both count in the bits from 32 on */
    return &p->buckets[key >> 32 & ((uint32_t)p->room - 1)];
}

static void put_in(ctcbind_prefixes *p, int32_t at)
{
    ctcbind_prefix *one = &p->nodes[at];
    int32_t *bucket = bucket_of(p, one->parent, one->label);
    one->next = *bucket;
    *bucket = at;
}

static void take_out(ctcbind_prefixes *p, int32_t at)
{
    const ctcbind_prefix *one = &p->nodes[at];
    int32_t *from = bucket_of(p, one->parent, one->label);
    while (*from != at) from = &p->nodes[*from].next;
    *from = one->next;
}

/* Where all nodes are in use, there is room for twice as many; 0 where there is none. */
static int grow(ctcbind_prefixes *p)
{
    if (p->room > INT32_MAX / 2) return 0;
    int32_t room = p->room ? 2 * p->room : 256;
    ctcbind_prefix *nodes = realloc(p->nodes, ctcbind_size((uint64_t)room * sizeof *nodes));
    if (!nodes) return 0;
    p->nodes = nodes;
    int32_t *buckets = realloc(p->buckets, (size_t)room * sizeof *buckets);
    if (!buckets) return 0;
    p->buckets = buckets;
    p->room = room;
    for (int32_t i = 0; i < room; i++) buckets[i] = NONE;
    for (int32_t at = 0; at < p->used; at++) put_in(p, at);
    return 1;
}

int32_t ctcbind_prefix_new(ctcbind_prefixes *p, int32_t parent, int32_t label)
{
    int32_t at = p->unused;
    if (at != NONE) p->unused = p->nodes[at].next;
    else if (p->used == p->room && !grow(p)) return NONE;
    else at = p->used++;
    p->nodes[at] = (ctcbind_prefix){parent, label, 0, NONE, 0, NONE, NULL};
    if (parent != NONE) {
        p->nodes[at].length = p->nodes[parent].length + 1;
        p->nodes[parent].uses++;
    }
    put_in(p, at);
    return at;
}

int32_t ctcbind_prefix_child(ctcbind_prefixes *p, int32_t parent, int32_t label)
{
    for (int32_t at = *bucket_of(p, parent, label); at != NONE; at = p->nodes[at].next)
        if (p->nodes[at].parent == parent && p->nodes[at].label == label) return at;
    return ctcbind_prefix_new(p, parent, label);
}

void ctcbind_prefix_release(ctcbind_prefixes *p, int32_t at)
{
    while (at != NONE && --p->nodes[at].uses == 0) {
        ctcbind_prefix *one = &p->nodes[at];
        int32_t parent = one->parent;
        take_out(p, at);
        one->next = p->unused;
        p->unused = at;
        at = parent;
    }
}

void ctcbind_prefix_write(const ctcbind_prefixes *p, int32_t at, int32_t *labels)
{
    for (int32_t i = p->nodes[at].length; i-- > 0; at = p->nodes[at].parent) labels[i] = p->nodes[at].label;
}

void ctcbind_prefixes_free(ctcbind_prefixes *p)
{
    free(p->nodes);
    free(p->buckets);
}
