/* warp-ctc, API version 2: include/ctc.h of baidu-research/warp-ctc at 94b2fa1.
 *
 * struct ctcOptions holds an anonymous union { unsigned int num_threads; CUstream stream; } there. cffi's ABI
 * mode cannot pass such a struct by value, so the union is one pointer-sized field here; the size (24 bytes on
 * 64-bit systems) and the way it is passed are the same.
 */
typedef int ctcStatus_t; /* 0 success, 1 memops failed, 2 invalid value, 3 execution failed, 4 unknown error */

struct ctcOptions {
    int loc; /* ctcComputeLocation: 0 CTC_CPU, 1 CTC_GPU */
    uintptr_t num_threads_or_stream;
    int blank_label;
};

int get_warpctc_version(void);
const char *ctcGetStatusString(ctcStatus_t status);

ctcStatus_t compute_ctc_loss(const float *activations, float *gradients, const int *flat_labels,
                             const int *label_lengths, const int *input_lengths, int alphabet_size,
                             int minibatch, float *costs, void *workspace, struct ctcOptions options);
ctcStatus_t compute_ctc_loss_double(const double *activations, double *gradients, const int *flat_labels,
                                    const int *label_lengths, const int *input_lengths, int alphabet_size,
                                    int minibatch, double *costs, void *workspace, struct ctcOptions options);
ctcStatus_t get_workspace_size(const int *label_lengths, const int *input_lengths, int alphabet_size,
                               int minibatch, struct ctcOptions options, size_t *size_bytes);
ctcStatus_t get_workspace_size_double(const int *label_lengths, const int *input_lengths, int alphabet_size,
                                      int minibatch, struct ctcOptions options, size_t *size_bytes);
