/* cuDNN 8 and 9, the calls that a CTC loss needs.
 *
 * From the headers of cuDNN 9.28.0 (cudnn_graph.h, cudnn_ops.h, cudnn_adv.h), compared with those of 9.0.0 and
 * 8.5.0 (cudnn_ops_infer.h, cudnn_adv_train.h): every declaration below is the same in all of them, unless a
 * "since" or an "until" stands before it. tools/check_headers.py holds this file against a real header.
 */

/* Opaque things. The stream and the property type are CUDA's (driver_types.h, library_types.h). */
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnCTCLossStruct *cudnnCTCLossDescriptor_t;
typedef struct CUstream_st *cudaStream_t;
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;

/* An enum in the headers. Its numbers changed at 9.0, so that no one list is right for both: both lists stand in
 * cudnn_status.py, and the version that runs says which to read. */
typedef int cudnnStatus_t;

typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT8 = 3,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_INT8x4 = 5,
    CUDNN_DATA_UINT8 = 6,
    CUDNN_DATA_UINT8x4 = 7,
    CUDNN_DATA_INT8x32 = 8,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_INT64 = 10,
    CUDNN_DATA_BOOLEAN = 11,
    CUDNN_DATA_FP8_E4M3 = 12, /* since 8.6.0 */
    CUDNN_DATA_FP8_E5M2 = 13, /* since 8.6.0 */
    CUDNN_DATA_FAST_FLOAT_FOR_FP8 = 14, /* since 8.7.0 */
    CUDNN_DATA_FP8_E8M0 = 15, /* since 9.7.0 */
    CUDNN_DATA_FP4_E2M1 = 16, /* since 9.7.0 */
    CUDNN_DATA_INT4 = 17, /* since 9.11.0 */
    CUDNN_DATA_UINT4 = 18, /* since 9.11.0 */
    CUDNN_DATA_UINT32 = 19, /* since 9.11.0 */
    CUDNN_DATA_COMPLEX_FP32 = 20, /* since 9.14.0 */
    CUDNN_DATA_COMPLEX_FP64 = 21, /* since 9.14.0 */
    CUDNN_DATA_BYTE_BOOLEAN = 22, /* since 9.25.0 */
    CUDNN_DATA_FP8_E5M3 = 23           /* since 9.26.0 */
} cudnnDataType_t;

typedef enum {
    CUDNN_CTC_LOSS_ALGO_DETERMINISTIC = 0,
    CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC = 1
} cudnnCTCLossAlgo_t;

typedef enum {
    CUDNN_LOSS_NORMALIZATION_NONE = 0,   /* the input is probabilities */
    CUDNN_LOSS_NORMALIZATION_SOFTMAX = 1 /* the input is activations */
} cudnnLossNormalizationMode_t;

/* In a CTC loss descriptor: what cudnnCTCGradMode_t is since 9.0, value for value. */
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 } cudnnNanPropagation_t;

/* since 9.0.0 */
typedef enum { CUDNN_CTC_ZERO_OOB_GRADIENTS = 0, CUDNN_CTC_SKIP_OOB_GRADIENTS = 1 } cudnnCTCGradMode_t;

typedef enum {
    CUDNN_SEV_FATAL = 0,
    CUDNN_SEV_ERROR = 1,
    CUDNN_SEV_WARNING = 2,
    CUDNN_SEV_INFO = 3
} cudnnSeverity_t;

typedef struct cudnnDebugStruct {
    unsigned cudnn_version;
    cudnnStatus_t cudnnStatus;
    unsigned time_sec;
    unsigned time_usec;
    unsigned time_delta;
    cudnnHandle_t handle;
    cudaStream_t stream;
    unsigned long long pid;
    unsigned long long tid;
    int cudaDeviceId;
    int reserved[15];
} cudnnDebug_t;

typedef void (*cudnnCallback_t)(cudnnSeverity_t sev, void *udata, const cudnnDebug_t *dbg, const char *msg);

/* The library */
size_t cudnnGetVersion(void);
size_t cudnnGetCudartVersion(void);
/* since 8.6.0 */
size_t cudnnGetMaxDeviceVersion(void);
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value);
const char *cudnnGetErrorString(cudnnStatus_t status);
/* since 9.0.0 */
void cudnnGetLastErrorString(char *message, size_t max_size);
cudnnStatus_t cudnnSetCallback(unsigned mask, void *udata, cudnnCallback_t fptr);
cudnnStatus_t cudnnGetCallback(unsigned *mask, void **udata, cudnnCallback_t *fptr);
/* since 9.0.0 */
cudnnStatus_t cudnnGraphVersionCheck(void);
/* since 9.0.0 */
cudnnStatus_t cudnnOpsVersionCheck(void);
/* since 9.0.0 */
cudnnStatus_t cudnnAdvVersionCheck(void);
/* until 9.0.0 */
cudnnStatus_t cudnnOpsInferVersionCheck(void);
/* until 9.0.0 */
cudnnStatus_t cudnnOpsTrainVersionCheck(void);
/* until 9.0.0 */
cudnnStatus_t cudnnAdvInferVersionCheck(void);
/* until 9.0.0 */
cudnnStatus_t cudnnAdvTrainVersionCheck(void);

/* Handle and stream */
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId);
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId);

/* Tensor descriptor: dimensions and strides in elements */
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensorDesc);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensorDesc, cudnnDataType_t dataType,
                                         int nbDims, const int dimA[], const int strideA[]);
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensorDesc, int nbDimsRequested,
                                         cudnnDataType_t *dataType, int *nbDims, int dimA[], int strideA[]);
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t tensorDesc, size_t *size);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc);

/* CTC loss descriptor */
cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t *ctcLossDesc);
cudnnStatus_t cudnnSetCTCLossDescriptor(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t compType);
cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t compType,
                                          cudnnLossNormalizationMode_t normMode,
                                          cudnnNanPropagation_t gradMode);
cudnnStatus_t cudnnSetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t compType,
                                           cudnnLossNormalizationMode_t normMode,
                                           cudnnNanPropagation_t gradMode, int maxLabelLength);
/* since 9.0.0 */
cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t compType,
                                           cudnnLossNormalizationMode_t normMode,
                                           cudnnCTCGradMode_t ctcGradMode, int maxLabelLength);
cudnnStatus_t cudnnGetCTCLossDescriptor(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t *compType);
cudnnStatus_t cudnnGetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t *compType,
                                          cudnnLossNormalizationMode_t *normMode,
                                          cudnnNanPropagation_t *gradMode);
cudnnStatus_t cudnnGetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t *compType,
                                           cudnnLossNormalizationMode_t *normMode,
                                           cudnnNanPropagation_t *gradMode, int *maxLabelLength);
/* since 9.0.0 */
cudnnStatus_t cudnnGetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t ctcLossDesc, cudnnDataType_t *compType,
                                           cudnnLossNormalizationMode_t *normMode,
                                           cudnnCTCGradMode_t *ctcGradMode, int *maxLabelLength);
cudnnStatus_t cudnnDestroyCTCLossDescriptor(cudnnCTCLossDescriptor_t ctcLossDesc);

/* The loss with labels and lengths in host memory */
cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t probsDesc,
                                           const cudnnTensorDescriptor_t gradientsDesc, const int *labels,
                                           const int *labelLengths, const int *inputLengths,
                                           cudnnCTCLossAlgo_t algo, cudnnCTCLossDescriptor_t ctcLossDesc,
                                           size_t *sizeInBytes);
cudnnStatus_t cudnnCTCLoss(cudnnHandle_t handle, const cudnnTensorDescriptor_t probsDesc, const void *probs,
                           const int hostLabels[], const int hostLabelLengths[], const int hostInputLengths[],
                           void *costs, const cudnnTensorDescriptor_t gradientsDesc, void *gradients,
                           cudnnCTCLossAlgo_t algo, cudnnCTCLossDescriptor_t ctcLossDesc,
                           void *workspace, size_t workSpaceSizeInBytes);

/* The loss with labels and lengths in device memory: algo and descriptor come first, and the workspace and its
 * size have swapped places. */
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algo,
                                              cudnnCTCLossDescriptor_t ctcLossDesc,
                                              const cudnnTensorDescriptor_t probsDesc,
                                              const cudnnTensorDescriptor_t gradientsDesc,
                                              size_t *sizeInBytes);
cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algo,
                              cudnnCTCLossDescriptor_t ctcLossDesc, const cudnnTensorDescriptor_t probsDesc,
                              const void *probs, const int labels[], const int labelLengths[],
                              const int inputLengths[], void *costs,
                              const cudnnTensorDescriptor_t gradientsDesc, void *gradients,
                              size_t workSpaceSizeInBytes, void *workspace);
