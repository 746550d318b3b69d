"""A CTC batch on the "device" of the fake libcudnn, set up call by call as a C program does it."""

from __future__ import annotations

import numpy as np

from ctcbind.bindings import cudnn

FLOAT = cudnn.CUDNN_DATA_FLOAT
DETERMINISTIC = cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
SOFTMAX, NONE = cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_LOSS_NORMALIZATION_NONE
ZERO, SKIP = cudnn.CUDNN_CTC_ZERO_OOB_GRADIENTS, cudnn.CUDNN_CTC_SKIP_OOB_GRADIENTS
KEEP_NAN = cudnn.CUDNN_PROPAGATE_NAN
NOTHING_ALIVE = {"handle": 0, "tensor": 0, "ctcloss": 0}


class Problem:
    """A batch on the "device", as a C program has it: buffers, descriptors, a handle."""

    def __init__(self, x, labels, label_lengths, input_lengths, *, norm=SOFTMAX, mode=0, version=92800):
        T, N, A = x.shape
        self.x = x
        self.grad = np.full_like(x, 7.0)  # which lies as x does
        self.costs = np.full(N, np.nan, dtype=np.float32)
        self.host = (labels, label_lengths, input_lengths)
        self.device = tuple(np.array(each or [0], dtype=np.int32) for each in self.host)
        self.handle = cudnn.cudnnCreate()
        self.probs = cudnn.cudnnCreateTensorDescriptor()
        self.grads = cudnn.cudnnCreateTensorDescriptor()
        self.desc = cudnn.cudnnCreateCTCLossDescriptor()
        for desc, values in ((self.probs, self.x), (self.grads, self.grad)):
            cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, (T, N, A), [s // 4 for s in values.strides])
        longest = max([1, *label_lengths])
        if version >= 90000:
            cudnn.cudnnSetCTCLossDescriptor_v9(self.desc, FLOAT, norm, mode, longest)
        else:
            cudnn.cudnnSetCTCLossDescriptor_v8(self.desc, FLOAT, norm, mode, longest)
        self.workspace = np.zeros(0, dtype=np.uint8)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for each in (self.desc, self.grads, self.probs, self.handle):
            each.close()

    def grow(self, size):
        self.workspace = np.zeros(size + 64, dtype=np.uint8)
        return size

    def run(self):
        """cudnnCTCLoss, the labels in host memory."""
        p, g = self.probs, self.grads
        size = cudnn.cudnnGetCTCLossWorkspaceSize(self.handle, p, g, *self.host, DETERMINISTIC, self.desc)
        self.grow(size)
        cudnn.cudnnCTCLoss(
            self.handle,
            p,
            self.x.ctypes.data,
            *self.host,
            self.costs.ctypes.data,
            g,
            self.grad.ctypes.data,
            DETERMINISTIC,
            self.desc,
            self.workspace.ctypes.data,
            size,
        )
        assert not self.workspace[size:].any(), "written past the workspace"
        return self.costs, self.grad

    def run_v8(self):
        """cudnnCTCLoss_v8, the labels in device memory."""
        p, g = self.probs, self.grads
        size = self.grow(cudnn.cudnnGetCTCLossWorkspaceSize_v8(self.handle, DETERMINISTIC, self.desc, p, g))
        cudnn.cudnnCTCLoss_v8(
            self.handle,
            DETERMINISTIC,
            self.desc,
            p,
            self.x.ctypes.data,
            *(each.ctypes.data for each in self.device),
            self.costs.ctypes.data,
            g,
            self.grad.ctypes.data,
            size,
            self.workspace.ctypes.data,
        )
        assert not self.workspace[size:].any(), "written past the workspace"
        return self.costs, self.grad


def uniform(T=100, N=5, A=10, **options):
    """The batch of the cuDNN forum's example: every loss is 203.984."""
    return Problem(np.zeros((T, N, A), np.float32), [1, 2, 3, 4] * N, [4] * N, [T] * N, **options)


#: How each kind of thing is made and destroyed.
MAKERS = {
    "handle": (cudnn.cudnnCreate, cudnn.cudnnDestroy),
    "tensor": (cudnn.cudnnCreateTensorDescriptor, cudnn.cudnnDestroyTensorDescriptor),
    "ctcloss": (cudnn.cudnnCreateCTCLossDescriptor, cudnn.cudnnDestroyCTCLossDescriptor),
}

#: Each function that returns a status, called rightly on a Problem.
CALLS = {
    "cudnnCreate": cudnn.cudnnCreate,
    "cudnnCreateTensorDescriptor": cudnn.cudnnCreateTensorDescriptor,
    "cudnnCreateCTCLossDescriptor": cudnn.cudnnCreateCTCLossDescriptor,
    "cudnnDestroy": lambda p: cudnn.cudnnDestroy(p.handle),
    "cudnnDestroyTensorDescriptor": lambda p: cudnn.cudnnDestroyTensorDescriptor(p.probs),
    "cudnnDestroyCTCLossDescriptor": lambda p: cudnn.cudnnDestroyCTCLossDescriptor(p.desc),
    "cudnnSetStream": lambda p: cudnn.cudnnSetStream(p.handle, None),
    "cudnnGetStream": lambda p: cudnn.cudnnGetStream(p.handle),
    "cudnnSetTensorNdDescriptor": lambda p: cudnn.cudnnSetTensorNdDescriptor(p.probs, FLOAT, (9, 5, 10), (50, 10, 1)),
    "cudnnGetTensorNdDescriptor": lambda p: cudnn.cudnnGetTensorNdDescriptor(p.probs),
    "cudnnGetTensorSizeInBytes": lambda p: cudnn.cudnnGetTensorSizeInBytes(p.probs),
    "cudnnSetCTCLossDescriptor": lambda p: cudnn.cudnnSetCTCLossDescriptor(p.desc, FLOAT),
    "cudnnSetCTCLossDescriptorEx": lambda p: cudnn.cudnnSetCTCLossDescriptorEx(p.desc, FLOAT, SOFTMAX, KEEP_NAN),
    "cudnnSetCTCLossDescriptor_v8": lambda p: cudnn.cudnnSetCTCLossDescriptor_v8(p.desc, FLOAT, SOFTMAX, KEEP_NAN, 9),
    "cudnnSetCTCLossDescriptor_v9": lambda p: cudnn.cudnnSetCTCLossDescriptor_v9(p.desc, FLOAT, SOFTMAX, ZERO, 9),
    "cudnnGetCTCLossDescriptor": lambda p: cudnn.cudnnGetCTCLossDescriptor(p.desc),
    "cudnnGetCTCLossDescriptorEx": lambda p: cudnn.cudnnGetCTCLossDescriptorEx(p.desc),
    "cudnnGetCTCLossDescriptor_v8": lambda p: cudnn.cudnnGetCTCLossDescriptor_v8(p.desc),
    "cudnnGetCTCLossDescriptor_v9": lambda p: cudnn.cudnnGetCTCLossDescriptor_v9(p.desc),
    "cudnnGetCTCLossWorkspaceSize": lambda p: p.run(),
    "cudnnCTCLoss": lambda p: p.run(),
    "cudnnGetCTCLossWorkspaceSize_v8": lambda p: p.run_v8(),
    "cudnnCTCLoss_v8": lambda p: p.run_v8(),
    "cudnnGetProperty": lambda p: cudnn.cudnnGetProperty(0),
    "cudnnSetCallback": lambda p: cudnn.cudnnSetCallback(0, None, None),
    "cudnnGraphVersionCheck": lambda p: cudnn.cudnnGraphVersionCheck(),
    "cudnnOpsVersionCheck": lambda p: cudnn.cudnnOpsVersionCheck(),
    "cudnnAdvVersionCheck": lambda p: cudnn.cudnnAdvVersionCheck(),
    "cudnnOpsInferVersionCheck": lambda p: cudnn.cudnnOpsInferVersionCheck(),
    "cudnnOpsTrainVersionCheck": lambda p: cudnn.cudnnOpsTrainVersionCheck(),
    "cudnnAdvInferVersionCheck": lambda p: cudnn.cudnnAdvInferVersionCheck(),
    "cudnnAdvTrainVersionCheck": lambda p: cudnn.cudnnAdvTrainVersionCheck(),
}

#: What came with cuDNN 9.0 (or 8.6), and what went with it.
ONLY_9 = {"cudnnSetCTCLossDescriptor_v9", "cudnnGetCTCLossDescriptor_v9", "cudnnGetMaxDeviceVersion"}
ONLY_9 |= {"cudnnGetLastErrorString", "cudnnGraphVersionCheck", "cudnnOpsVersionCheck", "cudnnAdvVersionCheck"}
ONLY_8 = {name for name in CALLS if name.endswith(("InferVersionCheck", "TrainVersionCheck"))}
#: The versions on both sides of what changed: the numbers of the statuses, and which functions there are.
VERSIONS = (92800, 90100, 8906, 8500)
