/* As much of the CUDA runtime and driver as CuPy and ctcbind use, on host memory. (NVRTC is in fake_nvrtc.cpp.)
 *
 * "Device" memory cannot be touched but by work on a stream (and by what asks: fake_cuda_open). Streams are lazy: their
 * work is done when something waits for it, and in no order but that which CUDA promises, so that what relies on more
 * goes wrong. Captured work is kept, and done at each launch of its graph. What CUDA would answer with an error is one
 * here, where ctcbind has to do with it; what would be undefined ends the process with a message. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
#define DIE(...)                                                                                                       \
    do {                                                                                                               \
        fprintf(stderr, "fake CUDA: " __VA_ARGS__);                                                                    \
        fprintf(stderr, "\n");                                                                                         \
        abort();                                                                                                       \
    } while (0)

typedef std::function<void()> Work;

static std::recursive_mutex mutex_;
#define LOCK std::lock_guard<std::recursive_mutex> lock(mutex_)

static thread_local int current;
static thread_local cudaError_t last_error;
static cudaError_t lost; /* what a kernel has done to the device */
static cudaError_t failed(cudaError_t error)
{
    if (error) last_error = error;
    return error;
}
static int devices()
{
    const char *told = getenv("FAKE_CUDA_DEVICES");
    return told ? atoi(told) : 2;
}

/* Memory ----------------------------------------------------------------------------------------------------------- */

static const size_t ARENA = (size_t)3 << 30, STEP = 512;
enum { FRESH = 0xFB, FREED = 0xDD, PAGEABLE = 1 << 16 };
struct Piece {
    size_t size, taken;
    int device;
};
static unsigned char *arena;
static std::map<size_t, Piece> pieces; /* by their offset in the arena */
static std::map<size_t, size_t> gaps;
static int opened;

static void open_arena()
{
    if (!arena) {
        void *room = mmap(nullptr, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) DIE("no memory");
        arena = (unsigned char *)room;
        gaps[0] = ARENA;
    }
    if (!opened++) mprotect(arena, ARENA, PROT_READ | PROT_WRITE);
}
static void close_arena()
{
    if (!--opened) mprotect(arena, ARENA, PROT_NONE);
}
struct Opened {
    Opened() { open_arena(); }
    ~Opened() { close_arena(); }
};

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

/* Streams ---------------------------------------------------------------------------------------------------------- */

struct Graph {
    std::vector<Work> work;
};
struct Stream {
    int device = 0;
    bool null = false, blocking = true;
    std::vector<Work> queue;
    size_t put = 0, done = 0;
    std::shared_ptr<Graph> capture;
    bool invalid = false; /* the capture is */
};
struct Event {
    Stream *stream = nullptr;
    size_t after = 0;
    double ms = 0;
};
enum { DEVICES = 16 };
static Stream defaults[DEVICES], of_threads[DEVICES];
static std::vector<Stream *> streams;
static std::set<const Stream *> destroyed; /* their memory stays, so that a use of them is seen */

static Stream *at(cudaStream_t given)
{
    if (streams.empty())
        for (int i = 0; i < DEVICES; i++) {
            defaults[i].null = true;
            defaults[i].device = of_threads[i].device = i;
            streams.push_back(&defaults[i]);
            streams.push_back(&of_threads[i]);
        }
    if (!given || given == cudaStreamLegacy) return &defaults[current];
    if (given == cudaStreamPerThread) return &of_threads[current];
    if (destroyed.count((Stream *)given)) DIE("stream %p was destroyed", (void *)given);
    return (Stream *)given;
}

static void drain(Stream *stream)
{
    Opened memory;
    while (!stream->queue.empty()) {
        std::vector<Work> queue;
        queue.swap(stream->queue);
        for (Work &work : queue) {
            work();
            stream->done++;
        }
    }
}

/* A device's default stream and those that block wait for each other. */
static void wait_for_others(Stream *stream)
{
    if (!stream->blocking) return;
    if (!stream->null) return drain(&defaults[stream->device]);
    for (Stream *other : streams)
        if (other != stream && other->blocking && other->device == stream->device && !other->capture) drain(other);
}

static cudaError_t invalidate(bool blocking_alone, cudaError_t error)
{
    bool any = false;
    for (Stream *stream : streams)
        if (stream->capture && (stream->blocking || !blocking_alone)) any = stream->invalid = true;
    return any ? failed(error) : cudaSuccess;
}

/* For what no capture bears: memory that is freed, the device that is waited for. */
static cudaError_t refuse_in_capture() { return invalidate(false, cudaErrorStreamCaptureUnsupported); }

static cudaError_t put(Stream *stream, const Work &work)
{
    if (stream->capture) {
        stream->capture->work.push_back(work);
        return cudaSuccess;
    }
    if (stream->null)
        if (cudaError_t error = invalidate(true, cudaErrorStreamCaptureImplicit)) return error;
    wait_for_others(stream);
    stream->queue.push_back(work);
    stream->put++;
    return cudaSuccess;
}

static cudaError_t wait_for(Stream *stream)
{
    if (stream->capture) {
        stream->invalid = true;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    wait_for_others(stream);
    drain(stream);
    return failed(lost);
}

static cudaError_t create(cudaStream_t *out, bool blocking)
{
    LOCK;
    at(nullptr);
    Stream *made = new Stream;
    made->device = current;
    made->blocking = blocking;
    streams.push_back(made);
    *out = (cudaStream_t)made;
    return cudaSuccess;
}

API cudaError_t cudaStreamCreate(cudaStream_t *out) { return create(out, true); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return create(out, !(flags & cudaStreamNonBlocking));
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int)
{
    return create(out, !(flags & cudaStreamNonBlocking));
}
API cudaError_t cudaStreamDestroy(cudaStream_t given)
{
    LOCK;
    Stream *stream = at(given);
    drain(stream);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream) streams.erase(streams.begin() + (long)i);
    destroyed.insert(stream);
    return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t given)
{
    LOCK;
    return wait_for(at(given));
}
API cudaError_t cudaStreamQuery(cudaStream_t given)
{
    LOCK;
    return at(given)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamGetFlags(cudaStream_t given, unsigned *flags)
{
    LOCK;
    *flags = at(given)->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t given, cudaHostFn_t function, void *argument)
{
    LOCK;
    return put(at(given), [=] { function(argument); });
}
API cudaError_t cudaStreamAddCallback(cudaStream_t given, cudaStreamCallback_t function, void *argument, unsigned)
{
    LOCK;
    return put(at(given), [=] { function(given, cudaSuccess, argument); });
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = (cudaEvent_t) new Event;
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete (Event *)event;
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t given, cudaStream_t stream)
{
    LOCK;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    Stream *on = at(stream);
    *(Event *)given = Event{on, on->put, (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6};
    return cudaSuccess;
}
static bool is_done(const Event *event)
{
    return !event->stream || destroyed.count(event->stream) || event->stream->done >= event->after;
}
API cudaError_t cudaEventQuery(cudaEvent_t given)
{
    LOCK;
    return is_done((Event *)given) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t given)
{
    LOCK;
    if (!is_done((Event *)given)) drain(((Event *)given)->stream);
    return failed(lost);
}
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(((Event *)to)->ms - ((Event *)from)->ms);
    return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned)
{
    LOCK;
    Stream *stream = at(given), *other = ((Event *)event)->stream;
    if (is_done((Event *)event)) return cudaSuccess;
    if (other->capture) stream->capture = other->capture;
    else drain(other);
    return cudaSuccess;
}

/* Graphs ----------------------------------------------------------------------------------------------------------- */

API cudaError_t cudaStreamBeginCapture(cudaStream_t given, cudaStreamCaptureMode)
{
    LOCK;
    Stream *stream = at(given);
    if (stream->null) return failed(cudaErrorStreamCaptureUnsupported);
    stream->capture = std::make_shared<Graph>();
    stream->invalid = false;
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t *out)
{
    LOCK;
    Stream *stream = at(given);
    std::shared_ptr<Graph> graph = stream->capture;
    for (Stream *each : streams)
        if (each->capture == graph) each->capture = nullptr;
    *out = nullptr;
    if (stream->invalid || !graph) return failed(cudaErrorStreamCaptureInvalidated);
    *out = (cudaGraph_t) new Graph(*graph);
    return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t given, cudaStreamCaptureStatus *status)
{
    LOCK;
    Stream *stream = at(given);
    *status = cudaStreamCaptureStatusNone;
    if (stream->null)
        if (cudaError_t error = invalidate(true, cudaErrorStreamCaptureImplicit)) return error;
    if (stream->capture)
        *status = stream->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    *out = (cudaGraphExec_t) new Graph(*(Graph *)graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaGraphLaunch(cudaGraphExec_t given, cudaStream_t stream)
{
    LOCK;
    std::vector<Work> all = ((Graph *)given)->work;
    return put(at(stream), [all] {
        for (const Work &work : all) work();
    });
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (Graph *)graph;
    return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete (Graph *)graph;
    return cudaSuccess;
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

/* Devices ---------------------------------------------------------------------------------------------------------- */

static const int VERSION = 12090;

API cudaError_t cudaGetDeviceCount(int *count)
{
    *count = devices();
    return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= devices()) return failed(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize(void)
{
    LOCK;
    if (cudaError_t error = refuse_in_capture()) return error;
    for (Stream *stream : streams) drain(stream);
    return failed(lost);
}
API cudaError_t cudaDriverGetVersion(int *version)
{
    *version = VERSION;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 0;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    static const std::map<int, int> known = {
        {cudaDevAttrMaxThreadsPerBlock, 1024},       {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxGridDimX, 2147483647},        {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
        {cudaDevAttrWarpSize, 32},                   {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrMultiProcessorCount, 132},       {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrUnifiedAddressing, 1},           {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    };
    auto found = known.find(attribute);
    *value = found == known.end() ? 0 : found->second;
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *out, int device)
{
    if (device < 0 || device >= devices()) return failed(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    strcpy(out->name, "a stand-in");
    out->major = 9;
    out->multiProcessorCount = 132;
    out->warpSize = 32;
    out->totalGlobalMem = ARENA;
    out->sharedMemPerBlock = 49152;
    out->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    snprintf(out, (size_t)size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
API const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    default: return "another error of a CUDA on host memory";
    }
}
API const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
API cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* The driver ------------------------------------------------------------------------------------------------------- */

struct Kernel {
    void *library;
    void (*body)(void *);
    std::vector<size_t> sizes;
    std::string name;
};
static const size_t CONTEXTS = 0x1000;

API CUresult cuCtxGetCurrent(CUcontext *out)
{
    *out = (CUcontext)(CONTEXTS + (size_t)current);
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context) current = (int)((size_t)context - CONTEXTS);
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *out)
{
    *out = current;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out)
{
    LOCK;
    *out = (CUcontext)(CONTEXTS + (size_t)at(stream)->device);
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult, const char **out)
{
    *out = "an error of the driver";
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char **out) { return cuGetErrorName(error, out); }
API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    LOCK;
    if (refuse_in_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const unsigned char *elf = (const unsigned char *)image; /* it ends with its section headers */
    size_t size = *(size_t *)(elf + 40) + (size_t)*(uint16_t *)(elf + 58) * *(uint16_t *)(elf + 60);
    std::string path = std::string(getenv("FAKE_CUDA_CACHE")) + "/module-XXXXXX";
    int file = mkstemp(path.data());
    if (write(file, image, size) != (ssize_t)size) DIE("no room for a module");
    close(file);
    *out = (CUmodule)dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    void *body = dlsym(module, (std::string("run_") + name).c_str());
    void *sizes = dlsym(module, (std::string("sizes_") + name).c_str());
    if (!body || !sizes) return CUDA_ERROR_NOT_FOUND;
    size_t of[256];
    size_t count = ((size_t(*)(size_t *))sizes)(of);
    *out = (CUfunction) new Kernel{module, (void (*)(void *))body, std::vector<size_t>(of, of + count), name};
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction)
{
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b,
                            unsigned c, unsigned shared, CUstream given, void **arguments, void **)
{
    LOCK;
    Kernel *kernel = (Kernel *)function;
    Stream *stream = at(given);
    if (!x || y != 1 || z != 1 || !threads || threads > 1024 || b != 1 || c != 1 || shared > 49152) {
        fprintf(stderr, "fake CUDA: %s is launched with %u %u %u blocks of %u %u %u threads and %u bytes\n",
                kernel->name.c_str(), x, y, z, threads, b, c, shared);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->device != current) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<std::vector<double>> kept; /* aligned, and the caller's are gone when the work is done */
    for (size_t i = 0; i < kernel->sizes.size(); i++) {
        kept.emplace_back((kernel->sizes[i] + sizeof(double) - 1) / sizeof(double));
        memcpy((void *)kept.back().data(), arguments[i], kernel->sizes[i]);
    }
    cudaError_t error = put(stream, [=] {
        std::vector<void *> pointers;
        for (const std::vector<double> &each : kept) pointers.push_back((void *)each.data());
        typedef const char *Launch(void (*)(void *), void **, unsigned, unsigned, size_t);
        Launch *launch = (Launch *)dlsym(kernel->library, "launch");
        const char *wrong = launch(kernel->body, pointers.data(), x, threads, shared);
        if (!*wrong) return;
        fprintf(stderr, "fake CUDA: %s: %s\n", kernel->name.c_str(), wrong);
        lost = cudaErrorLaunchFailure;
    });
    return error ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* For a libcudnn on host memory, and for what is not here ---------------------------------------------------------- */

API void fake_cuda_open(void *stream)
{
    mutex_.lock();
    wait_for_others(at((cudaStream_t)stream));
    drain(at((cudaStream_t)stream));
    open_arena();
}
API void fake_cuda_close(void)
{
    close_arena();
    mutex_.unlock();
}
API void fake_cuda_put(void *stream, void (*work)(void *), void *argument)
{
    LOCK;
    put(at((cudaStream_t)stream), [=] { work(argument); });
}
API int fake_cuda_missing(const char *name)
{
    fprintf(stderr, "fake CUDA: there is no %s\n", name);
    return cudaErrorNotSupported;
}
