/* What the files of the fake CUDA share: see fake_cuda.cpp. All of it is hidden in the library but what is marked. */
#pragma once
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
#define DIE(...)                                                                                                       \
    do {                                                                                                               \
        fprintf(stderr, "fake CUDA: " __VA_ARGS__);                                                                    \
        fprintf(stderr, "\n");                                                                                         \
        abort();                                                                                                       \
    } while (0)

typedef std::function<void()> Work;

extern std::recursive_mutex mutex_;
#define LOCK std::lock_guard<std::recursive_mutex> lock(mutex_)

extern thread_local int current; /* device */
extern cudaError_t lost; /* what a kernel has done to the device */
cudaError_t failed(cudaError_t error);

/* memory.cpp */
static const size_t ARENA = (size_t)3 << 30;
void open_arena();
void close_arena();
struct Opened {
    Opened() { open_arena(); }
    ~Opened() { close_arena(); }
};

/* streams.cpp */
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
extern std::vector<Stream *> streams;
Stream *at(cudaStream_t given);
void drain(Stream *stream);
void wait_for_others(Stream *stream);
cudaError_t refuse_in_capture();
cudaError_t put(Stream *stream, const Work &work);
cudaError_t wait_for(Stream *stream);
