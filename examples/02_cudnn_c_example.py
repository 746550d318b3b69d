"""NVIDIA's forum answer to "where is an example of cudnnCTCLoss?", line by line in Python.

The C program is at forums.developer.nvidia.com/t/56058. `ctcbind.bindings.cudnn` has the C functions under their
own names; what C writes through a pointer is returned, and a status other than success is an exception, so that
the program's CUDNN_CALL macro is not needed. CuPy takes the part of cudaMalloc and cudaMemcpy.

Where there is no CUDA device the same problem goes through the native engine.
"""

import numpy as np

import ctcbind
from ctcbind.bindings import cudnn

B = 5  # batch size
T = 100  # time steps; there must be as many as labels and repeats together
A = 10  # alphabet: nine labels and the blank, which for cuDNN is class 0
labels = [1, 2, 3, 4]

flat_labels = np.array(labels * B, dtype=np.int32)  # sample after sample, without padding
label_lengths = np.full(B, len(labels), dtype=np.int32)
input_lengths = np.full(B, T, dtype=np.int32)
host_probs = np.full((T, B, A), 0.1, dtype=np.float32)  # what a softmax gives for equal scores


def main() -> None:
    try:
        import cupy

        cupy.cuda.runtime.getDevice()
        cudnn.cudnnGetVersion()  # loads the library
    except (ImportError, RuntimeError) as error:  # CuPy's and ctcbind's errors for a missing device are RuntimeErrors
        first_line = str(error).splitlines()[0]
        print(f"No CUDA device, CuPy or cuDNN here ({first_line})")
        print("The same problem on the native engine:")
        # cuDNN reads probabilities here and the native engine logits; ln p are logits whose softmax is p
        costs, gradients, _ = ctcbind.ctc_loss_and_grad(np.log(host_probs), flat_labels, input_lengths, label_lengths)
    else:
        print(f"cuDNN {cudnn.cudnnGetVersion()}")
        costs, gradients = on_the_device(cupy)
    show(costs, gradients)


def on_the_device(cupy):
    """Costs (B,) and gradients (T, B, A) from cudnnCTCLoss, copied back to the host."""
    dims, strides = (T, B, A), (B * A, A, 1)
    with (
        cudnn.cudnnCreate() as handle,
        cudnn.cudnnCreateTensorDescriptor() as probs_desc,
        cudnn.cudnnCreateTensorDescriptor() as gradients_desc,
        cudnn.cudnnCreateCTCLossDescriptor() as ctc_desc,
    ):
        cudnn.cudnnSetStream(handle, cupy.cuda.get_current_stream().ptr)

        # The forum's program allocated T * A floats for a tensor of T * B * A: the batch size was left out. cuDNN
        # knows only the descriptor, so it reads and writes four fifths of the tensor outside such a buffer, and
        # says nothing. An array of the descriptor's own shape cannot go wrong, and the size can be asked for.
        cudnn.cudnnSetTensorNdDescriptor(probs_desc, cudnn.CUDNN_DATA_FLOAT, dims, strides)
        probs = cupy.asarray(host_probs)
        assert probs.nbytes == cudnn.cudnnGetTensorSizeInBytes(probs_desc) == T * B * A * 4

        cudnn.cudnnSetTensorNdDescriptor(gradients_desc, cudnn.CUDNN_DATA_FLOAT, dims, strides)
        gradients = cupy.zeros(dims, dtype=cupy.float32)  # zeros: cuDNN leaves time past an input length unwritten
        assert gradients.nbytes == cudnn.cudnnGetTensorSizeInBytes(gradients_desc)

        costs = cupy.empty(B, dtype=cupy.float32)
        cudnn.cudnnSetCTCLossDescriptor(ctc_desc, cudnn.CUDNN_DATA_FLOAT)  # this setter means NORMALIZATION_NONE
        algo = cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
        size = cudnn.cudnnGetCTCLossWorkspaceSize(
            handle, probs_desc, gradients_desc, flat_labels, label_lengths, input_lengths, algo, ctc_desc
        )
        workspace = cupy.empty(size, dtype=cupy.uint8)
        cudnn.cudnnCTCLoss(
            handle,
            probs_desc,
            probs.data.ptr,  # probabilities: after the softmax
            flat_labels,  # labels and lengths stay on the host
            label_lengths,
            input_lengths,
            costs.data.ptr,
            gradients_desc,
            gradients.data.ptr,  # with respect to what is said below
            algo,
            ctc_desc,
            workspace.data.ptr,
            size,
        )

        # Documents promise the gradient with respect to the activations before the softmax: y - occupancy, whose rows
        # sum to 0. cuDNN 9.19 has -occupancy / y for a class that paths go through, and y for any other.
        wrong = gradients.sum(axis=2, keepdims=True) < -0.5
        gradients = cupy.where(wrong, probs + probs * cupy.minimum(gradients, 0), gradients)
        return cupy.asnumpy(costs), cupy.asnumpy(gradients)  # asnumpy waits for the stream


def show(costs, gradients) -> None:
    print("costs:", " ".join(f"{cost:.3f}" for cost in costs))
    print("gradient of sample 0 at the first time step:", " ".join(f"{value:.4f}" for value in gradients[0, 0]))
    print(f"largest sum of a gradient over the classes: {abs(gradients.sum(axis=2)).max():.1e}")


if __name__ == "__main__":
    main()
