"""One batch through native, warp-ctc and cuDNN, each in its own convention; then three ways to get it wrong.

All three compute the same loss, and one gradient: that with respect to the activations before the softmax. They differ
in what they take:

    native, warp-ctc                           activations; the softmax is inside
    cuDNN, CUDNN_LOSS_NORMALIZATION_SOFTMAX    activations; the softmax is inside
    cuDNN, CUDNN_LOSS_NORMALIZATION_NONE       probabilities: you apply the softmax, and yet the gradient that its
                                               guide promises is not with respect to what you gave. (cuDNN 9.19 does
                                               not keep the promise: what comes back is mended here)

warp-ctc runs from its own library where there is one. cuDNN needs a CUDA device: where there is none its
convention is computed with NumPy from the reference engine, and the output says so.
"""

import numpy as np

import ctcbind
from ctcbind.engines.reference import forward_backward

T, N, C = 20, 3, 6
BLANK = 0
rng = np.random.default_rng(7)
LOGITS = rng.uniform(0.5, 4.0, size=(T, N, C)).astype(np.float32)  # all positive, as after a ReLU
TARGETS = [[1, 2, 2, 3], [5, 4], [1, 1, 1]]
FLAT = np.array([label for row in TARGETS for label in row], dtype=np.int32)
LENGTHS = np.array([len(row) for row in TARGETS], dtype=np.int32)
FRAMES = np.full(N, T, dtype=np.int32)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# ------------------------------------------------------------------------------ each in its own convention


def native(activations):
    """Activations in, (losses, gradients) out."""
    loss, grad, _ = ctcbind.ctc_loss_and_grad(activations, TARGETS, engine="native")
    return loss, grad


def cudnn_none_on_paper(probabilities):
    """What CUDNN_LOSS_NORMALIZATION_NONE means, in NumPy: the numbers are taken as probabilities, whatever they
    are, and the gradient is the one with respect to the activations whose softmax they are supposed to be."""
    losses, grads = np.empty(N), np.empty(probabilities.shape)
    for n, labels in enumerate(TARGETS):
        with np.errstate(invalid="ignore", divide="ignore"):
            log_p = np.log(probabilities[:, n].astype(np.float64))
        losses[n], expected_counts = forward_backward(log_p, np.array(labels), BLANK)
        grads[:, n] = probabilities[:, n] - expected_counts
    return losses, grads


def cudnn_on_device(cupy, array, normalization):
    """cudnnCTCLoss itself, with the binding's C names."""
    from ctcbind.bindings import cudnn as c

    x, grads = cupy.asarray(array, dtype=cupy.float32), cupy.zeros((T, N, C), dtype=cupy.float32)
    costs, algo = cupy.empty(N, dtype=cupy.float32), c.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
    with (
        c.cudnnCreate() as handle,
        c.cudnnCreateTensorDescriptor() as tensor,
        c.cudnnCreateCTCLossDescriptor() as loss,
    ):
        c.cudnnSetStream(handle, cupy.cuda.get_current_stream().ptr)
        c.cudnnSetTensorNdDescriptor(tensor, c.CUDNN_DATA_FLOAT, (T, N, C), (N * C, C, 1))
        c.cudnnSetCTCLossDescriptorEx(loss, c.CUDNN_DATA_FLOAT, normalization, c.CUDNN_NOT_PROPAGATE_NAN)
        size = c.cudnnGetCTCLossWorkspaceSize(handle, tensor, tensor, FLAT, LENGTHS, FRAMES, algo, loss)
        room = cupy.empty(size, dtype=cupy.uint8)
        c.cudnnCTCLoss(
            handle,
            tensor,
            x.data.ptr,
            FLAT,
            LENGTHS,
            FRAMES,
            costs.data.ptr,
            tensor,
            grads.data.ptr,
            algo,
            loss,
            room.data.ptr,
            size,
        )
        return cupy.asnumpy(costs), cupy.asnumpy(grads)


def as_promised(probabilities, results):
    """y - occupancy, of whose rows each sums to 0, from -occupancy / y (and y where no path goes), as 9.19 has it."""
    losses, grads = results
    is_other = grads.sum(axis=2, keepdims=True) < probabilities.sum(axis=2, keepdims=True) - 1.5
    return losses, np.where(is_other, probabilities + probabilities * np.minimum(grads, 0), grads)


def find_cudnn():
    """(cudnn_none, cudnn_softmax, a word on how they are computed)."""
    try:
        import cupy

        from ctcbind.bindings import cudnn as c

        cupy.cuda.runtime.getDevice()
        version = c.cudnnGetVersion()
    except (ImportError, RuntimeError):
        return cudnn_none_on_paper, lambda x: cudnn_none_on_paper(softmax(x)), "no CUDA device: in NumPy"
    return (
        lambda p: as_promised(p, cudnn_on_device(cupy, p, c.CUDNN_LOSS_NORMALIZATION_NONE)),
        lambda x: cudnn_on_device(cupy, x, c.CUDNN_LOSS_NORMALIZATION_SOFTMAX),
        f"cuDNN {version}",
    )


def warpctc(activations):
    """warp-ctc's own compute_ctc_loss: activations in, (costs, gradients) out; None where its library is absent."""
    from ctcbind.bindings import warpctc as w

    try:
        w.get_warpctc_version()  # loads the library
    except ctcbind.EngineUnavailable:
        return None
    costs, grads = np.empty(N, dtype=np.float32), np.zeros_like(activations)
    options = w.ctcOptions(blank_label=BLANK)
    room = np.empty(w.get_workspace_size(LENGTHS, FRAMES, C, N, options), dtype=np.uint8)
    w.compute_ctc_loss(activations, grads, FLAT, LENGTHS, FRAMES, C, N, costs, room, options)
    return costs, grads


# --------------------------------------------------------------------------------------------- the output


def show(name, loss, grad, right):
    apart = f"{np.abs(grad - right).max():.1e}" if np.isfinite(grad).all() else "not finite"
    print(f"  {name:<38}{'  '.join(f'{each:8.3f}' for each in loss)}   {apart}")


def main() -> None:
    cudnn_none, cudnn_softmax, how = find_cudnn()
    probabilities = softmax(LOGITS.astype(np.float64)).astype(np.float32)
    loss, right = native(LOGITS)

    print(f"T={T}, N={N}, C={C}, blank {BLANK}; the last column is the largest difference from native's gradient\n")
    print("1. Each in its own convention: one loss, one gradient")
    show("native, activations", loss, right, right)
    if (from_warpctc := warpctc(LOGITS)) is None:
        print("  warp-ctc, activations                   (no libwarpctc here: pip install --no-deps paddlepaddle)")
    else:
        show("warp-ctc, activations", *from_warpctc, right)
    show("cuDNN SOFTMAX, activations", *cudnn_softmax(LOGITS), right)
    show("cuDNN NONE, probabilities", *cudnn_none(probabilities), right)
    print(f"  (cuDNN: {how})")

    print("\n2. Activations given to cuDNN's NORMALIZATION_NONE")
    wrong_loss, wrong = cudnn_none(LOGITS)
    show("cuDNN NONE, activations", wrong_loss, wrong, right)
    print("  cuDNN has no check for this. These 'probabilities' sum to", end=" ")
    print(f"{LOGITS.sum(axis=2).mean():.1f} a frame, not 1.")
    if (wrong_loss < 0).any():
        print("  A loss below 0 is no -ln p.")
    print(f"  The gradient of one frame should sum to 0 over the classes; it sums to {wrong[0, 0].sum():.2f}.")

    print("\n3. Softmax applied twice: probabilities given to an engine that applies its own")
    twice_loss, twice = native(probabilities)
    show("native, probabilities", twice_loss, twice, right)
    uniform = ctcbind.ctc_loss(np.zeros_like(LOGITS), TARGETS)
    print(f"  {'(uniform scores, for comparison)':<38}{'  '.join(f'{each:8.3f}' for each in uniform)}")
    print("  Probabilities lie between 0 and 1, so that a second softmax makes them nearly uniform:")
    certain = np.zeros((T, C), dtype=np.float32)
    certain[np.arange(T), [BLANK] * 5 + [1] * 5 + [2] * 5 + [BLANK] * 5] = 1  # probabilities of a perfect network
    perfect = ctcbind.ctc_loss(certain[:, None], [[1, 2]])[0]
    print(f"  a network that is certain and right has loss 0, and is told {perfect:.3f}.")

    print("\n4. The gradient that cuDNN's guide promises of NONE, taken for one with respect to the probabilities")
    _, returned = cudnn_none(probabilities)
    inner = (probabilities * returned).sum(axis=2, keepdims=True)
    chained = probabilities * (returned - inner)  # the softmax's own gradient, applied although it is in there already
    t, n, k = 0, 0, TARGETS[0][0]
    print(f"  sample {n}, frame {t}, class {k}:")
    print(f"    d loss / d activation, by differences    {slope(LOGITS, t, n, k, softmax):9.4f}")
    print(f"    d loss / d probability, by differences   {slope(probabilities, t, n, k, np.asarray):9.4f}")
    print(f"    returned                                 {returned[t, n, k]:9.4f}")
    print(f"    returned, then chained through a softmax {chained[t, n, k]:9.4f}")
    shrunk = np.linalg.norm(chained) / np.linalg.norm(right)
    print(f"  Chained, the gradient keeps {shrunk:.0%} of its length, and its direction is off: cosine", end=" ")
    print(f"{(chained * right).sum() / np.linalg.norm(chained) / np.linalg.norm(right):.3f}.")


def slope(x, t, n, k, normalise, step=1e-5):
    """The central difference of sample n's loss for one entry of x, in float64."""
    losses = []
    for sign in (1, -1):
        moved = x.astype(np.float64)
        moved[t, n, k] += sign * step
        losses.append(cudnn_none_on_paper(normalise(moved))[0][n])
    return (losses[0] - losses[1]) / (2 * step)


if __name__ == "__main__":
    main()
