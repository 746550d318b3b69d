"""A gated recurrent unit that reads in both directions, forward and backward by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layers import Array, Layer, drawn, valid


class BidirectionalGRU(Layer):
    """Two GRUs of H units: one from the first step to the last, one from each sample's own last step to the first.

        z = sigmoid(x Wz + h Uz + bz)           how much of the state is kept
        r = sigmoid(x Wr + h Ur + br)           how much of the state the proposal may see
        g = tanh(x Wg + r * (h Ug + cg) + bg)   the proposal
        h = z h + (1 - z) g

    (N, T, C) in, (N, T, 2H) out. Each sample is turned round within its length, so that both directions run over the
    valid steps first and side by side, as one batch of matrix products: d below is the direction, 0 or 1.

    Source: Cho et al., EMNLP 2014, with the reset after the product, as in cuDNN.
    """

    def __init__(self, rng: np.random.Generator, C: int, H: int, xp: Any = np) -> None:
        super().__init__(xp)
        self.H = H
        orthogonal = np.stack([np.linalg.qr(rng.normal(size=(H, H)))[0] for _ in range(6)])
        U = orthogonal.reshape(2, 3, H, H).transpose(0, 2, 1, 3).reshape(2, H, 3 * H)
        self.params = {
            "W": drawn(xp, rng, (2, C, 3 * H), C**-0.5),
            "U": xp.asarray(U.astype(np.float32)),
            "b": xp.zeros((2, 1, 3 * H), dtype=np.float32),
            "c": xp.zeros((2, 1, H), dtype=np.float32),
        }

    def _turn(self, x: Array) -> Array:
        """Each sample's valid steps in reverse order; its own inverse."""
        return x[self.xp.arange(x.shape[0])[:, None], self.order]

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        xp, H = self.xp, self.H
        N, T, C = x.shape
        time = xp.arange(T)[None, :]
        self.order = xp.where(time < lengths[:, None], lengths[:, None] - 1 - time, time)
        self.mask = valid(xp, lengths, T, x.dtype)
        both = xp.stack([x, self._turn(x)]).transpose(0, 2, 1, 3)  # (2, T, N, C): a step is one block of memory
        self.x = xp.ascontiguousarray(both).reshape(2, T * N, C)
        from_x = (self.x @ self.params["W"] + self.params["b"]).reshape(2, T, N, 3 * H)
        U, c = self.params["U"], self.params["c"]
        self.h = xp.zeros((T + 1, 2, N, H), dtype=x.dtype)  # h[t] is the state before step t
        self.gates = xp.empty((T, 2, N, 2 * H), dtype=x.dtype)
        self.proposal = xp.empty((T, 2, N, H), dtype=x.dtype)
        self.seen = xp.empty((T, 2, N, H), dtype=x.dtype)
        for t in range(T):
            h = self.h[t]
            from_h = h @ U
            gates = 0.5 + 0.5 * xp.tanh(0.5 * (from_x[:, t, :, : 2 * H] + from_h[..., : 2 * H]))  # the sigmoid
            seen = from_h[..., 2 * H :] + c
            g = xp.tanh(from_x[:, t, :, 2 * H :] + gates[..., H:] * seen)
            self.h[t + 1] = g + gates[..., :H] * (h - g)
            self.gates[t], self.proposal[t], self.seen[t] = gates, g, seen
        forth, back = self.h[1:].transpose(1, 2, 0, 3)
        return xp.concatenate([forth, self._turn(back)], axis=-1) * self.mask

    def backward(self, dy: Array) -> Array:
        xp, H = self.xp, self.H
        N, T, _ = dy.shape
        dy = dy * self.mask
        dh_out = xp.ascontiguousarray(xp.stack([dy[..., :H], self._turn(dy[..., H:])]).transpose(2, 0, 1, 3))
        U_back = self.params["U"].transpose(0, 2, 1)
        dfrom_x = xp.empty((T, 2, N, 3 * H), dtype=dy.dtype)
        dfrom_h = xp.empty((T, 2, N, 3 * H), dtype=dy.dtype)
        # what does not depend on the way back is done for all steps at once
        z, r = self.gates[..., :H], self.gates[..., H:]
        slope_z = (self.h[:-1] - self.proposal) * z * (1 - z)
        slope_g = (1 - z) * (1 - self.proposal * self.proposal)
        slope_r = self.seen * r * (1 - r)
        dh = xp.zeros((2, N, H), dtype=dy.dtype)
        for t in reversed(range(T)):
            dh = dh + dh_out[t]
            dg = dh * slope_g[t]
            dfrom_h[t, ..., :H] = dh * slope_z[t]
            dfrom_h[t, ..., H : 2 * H] = dg * slope_r[t]
            dfrom_h[t, ..., 2 * H :] = dg * r[t]
            dfrom_x[t, ..., 2 * H :] = dg
            dh = dh * z[t] + dfrom_h[t] @ U_back
        dfrom_x[..., : 2 * H] = dfrom_h[..., : 2 * H]
        flat_x = dfrom_x.transpose(1, 0, 2, 3).reshape(2, T * N, 3 * H)
        flat_h = dfrom_h.transpose(1, 0, 2, 3).reshape(2, T * N, 3 * H)
        states = self.h[:-1].transpose(1, 0, 2, 3).reshape(2, T * N, H)
        self.grads = {
            "W": self.x.transpose(0, 2, 1) @ flat_x,
            "U": states.transpose(0, 2, 1) @ flat_h,
            "b": flat_x.sum(axis=1, keepdims=True),
            "c": flat_h[..., 2 * H :].sum(axis=1, keepdims=True),
        }
        dx = (flat_x @ self.params["W"].transpose(0, 2, 1)).reshape(2, T, N, -1).transpose(0, 2, 1, 3)
        return dx[0] + self._turn(dx[1])
