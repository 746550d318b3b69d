/* Memory of the fake CUDA's devices, and of its host. */
#include "fake_cuda.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

static const size_t STEP = 512;
enum { FRESH = 0xFB, FREED = 0xDD, PAGEABLE = 1 << 16 };
struct Piece {
    size_t size, taken;
    int device;
};
static unsigned char *arena;
static std::map<size_t, Piece> pieces; /* by their offset in the arena */
static std::map<size_t, size_t> gaps;
static int opened;

void open_arena()
{
    if (!arena) {
        void *room = mmap(nullptr, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) DIE("no memory");
        arena = (unsigned char *)room;
        gaps[0] = ARENA;
    }
    if (!opened++) mprotect(arena, ARENA, PROT_READ | PROT_WRITE);
}
void close_arena()
{
    if (!--opened) mprotect(arena, ARENA, PROT_NONE);
}
static bool there(const void *p) { return arena && p >= arena && p < arena + ARENA; }

static const Piece *piece_of(const void *p, size_t *begin)
{
    if (!there(p)) return nullptr;
    size_t at = (size_t)((const unsigned char *)p - arena);
    auto next = pieces.upper_bound(at);
    if (next == pieces.begin()) return nullptr;
    --next;
    *begin = next->first;
    return at < next->first + next->second.size ? &next->second : nullptr;
}

static void in_bounds(const void *p, size_t size, const char *what)
{
    size_t begin;
    const Piece *piece = piece_of(p, &begin);
    if (!size || !there(p)) return;
    if (!piece || (const unsigned char *)p + size > arena + begin + piece->size)
        DIE("%s %zu bytes at %p, which is not within what was allocated", what, size, p);
}

static void copy(void *to, const void *from, size_t size)
{
    in_bounds(to, size, "a copy to");
    in_bounds(from, size, "a copy from");
    memmove(to, from, size);
}

/* Memory, as it is asked for --------------------------------------------------------------------------------------- */

static size_t room_for(size_t size) { return (size / STEP + 2) * STEP; /* and a border */ }

API cudaError_t cudaMalloc(void **out, size_t size)
{
    LOCK;
    Opened memory;
    size_t room = room_for(size);
    *out = nullptr;
    for (auto &gap : gaps) {
        if (gap.second < room) continue;
        auto [begin, length] = gap;
        gaps.erase(begin);
        if (length > room) gaps[begin + room] = length - room;
        pieces[begin] = Piece{size, room, current};
        *out = memset(arena + begin, FRESH, room);
        return cudaSuccess;
    }
    return failed(cudaErrorMemoryAllocation);
}
API cudaError_t cudaFree(void *p)
{
    LOCK;
    if (!p) return cudaSuccess;
    if (cudaError_t error = refuse_in_capture()) return error;
    for (Stream *stream : streams) drain(stream);
    Opened memory;
    size_t begin = (size_t)((unsigned char *)p - arena);
    auto found = pieces.find(begin);
    if (!there(p) || found == pieces.end()) DIE("cudaFree of %p, which was not allocated", p);
    for (size_t i = found->second.size; i < found->second.taken; i++)
        if (arena[begin + i] != FRESH) DIE("%p of %zu bytes was written past its end", p, found->second.size);
    memset(p, FREED, found->second.size);
    gaps[begin] = found->second.taken;
    pieces.erase(found);
    return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t) { return cudaMalloc(out, size); }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    LOCK;
    return put(at(stream), [p] { cudaFree(p); });
}
static std::map<const unsigned char *, size_t> locked; /* memory of the host that is page-locked, and its sizes */
static bool is_locked(const void *p)
{
    auto next = locked.upper_bound((const unsigned char *)p);
    if (next == locked.begin()) return false;
    --next;
    return (const unsigned char *)p < next->first + next->second;
}

API cudaError_t cudaHostAlloc(void **out, size_t size, unsigned)
{
    LOCK;
    *out = malloc(size ? size : 1);
    locked[(const unsigned char *)*out] = size ? size : 1;
    return cudaSuccess;
}
API cudaError_t cudaFreeHost(void *p)
{
    LOCK;
    for (Stream *stream : streams) drain(stream);
    locked.erase((const unsigned char *)p);
    free(p);
    return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    LOCK;
    *left = *all = ARENA;
    for (auto &each : pieces) *left -= each.second.taken;
    return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t given)
{
    LOCK;
    Stream *stream = at(given);
    bool out_of = there(from), into = there(to);
    cudaMemcpyKind right = into ? (out_of ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                : (out_of ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    if (kind != right && kind != cudaMemcpyDefault) DIE("cudaMemcpyKind %d from %p to %p", (int)kind, from, to);
    if (!out_of && !is_locked(from) && !stream->capture) { /* pageable memory has been read when the call returns, */
        std::vector<unsigned char> kept((const unsigned char *)from, (const unsigned char *)from + size);
        cudaError_t error = put(stream, [=] { copy(to, kept.data(), size); });
        if (!error && size > PAGEABLE) drain(stream); /* and much of it when the stream has come here */
        return error;
    }
    cudaError_t error = put(stream, [=] { copy(to, from, size); });
    if (!error && !into && !is_locked(to) && !stream->capture) drain(stream); /* and has been written */
    return error;
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    LOCK;
    if (cudaError_t error = refuse_in_capture()) return error;
    if (cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr)) return error;
    return wait_for(at(nullptr));
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t stream)
{
    LOCK;
    return put(at(stream), [=] { copy(to, from, size); });
}
API cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream)
{
    LOCK;
    return put(at(stream), [=] {
        in_bounds(p, size, "cudaMemset of");
        memset(p, value, size);
    });
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p)
{
    LOCK;
    size_t begin;
    const Piece *piece = piece_of(p, &begin);
    memset(out, 0, sizeof *out);
    out->type = piece ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    out->device = piece ? piece->device : current;
    (piece ? out->devicePointer : out->hostPointer) = (void *)p;
    return cudaSuccess;
}
