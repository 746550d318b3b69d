/* Streams, events and graphs of the fake CUDA. */
#include "fake_cuda.h"

#include <time.h>

#include <set>

struct Event {
    Stream *stream = nullptr;
    size_t after = 0;
    double ms = 0;
};
enum { DEVICES = 16 };
static Stream defaults[DEVICES], of_threads[DEVICES];
std::vector<Stream *> streams;
static std::set<const Stream *> destroyed; /* their memory stays, so that a use of them is seen */

Stream *at(cudaStream_t given)
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

void drain(Stream *stream)
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
void wait_for_others(Stream *stream)
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
cudaError_t refuse_in_capture() { return invalidate(false, cudaErrorStreamCaptureUnsupported); }

cudaError_t put(Stream *stream, const Work &work)
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

cudaError_t wait_for(Stream *stream)
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
