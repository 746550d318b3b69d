/* As much of the CUDA runtime and driver as CuPy and ctcbind use, on host memory. (NVRTC is in fake_nvrtc.cpp.)
 *
 * "Device" memory cannot be touched but by work on a stream (and by what asks: fake_cuda_open). Streams are lazy: their
 * work is done when something waits for it, and in no order but that which CUDA promises, so that what relies on more
 * goes wrong. Captured work is kept, and done at each launch of its graph. What CUDA would answer with an error is one
 * here, where ctcbind has to do with it; what would be undefined ends the process with a message. */
#include "fake_cuda.h"

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

std::recursive_mutex mutex_;

thread_local int current;
static thread_local cudaError_t last_error;
cudaError_t lost; /* what a kernel has done to the device */
cudaError_t failed(cudaError_t error)
{
    if (error) last_error = error;
    return error;
}
static int devices()
{
    const char *told = getenv("FAKE_CUDA_DEVICES");
    return told ? atoi(told) : 2;
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
