"""Dense layers on a processor: products by BLAS with `native.layers` between them, and their gradients. Pure."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32
from embedding_store.towers import Layers
from native.layers import add_bias, add_columns, rectified_gradients

LayersAt = list[tuple[int, int, int]]
"""Where each layer of a tower begins in the flat dense parameters, its inputs, its outputs."""

_BLOCK = 128
"""Rows of a product: as few as OpenBLAS multiplies without packing its operands first, a quarter faster."""

_WIDE = 64 * 64
"""Parameters of a layer from which its gradient is one product."""


def outputs(layers: Layers, x: F32) -> list[F32]:
    """[x (n, dim), what each layer makes of it (n, outputs)]: `embedding_store.towers.forward`, nothing left out."""
    all_of = [x]
    for i, (weights, bias) in enumerate(layers):
        made = _product(all_of[-1], weights)
        add_bias(made, bias, i + 1 < len(layers))
        all_of.append(made)
    return all_of


def input_gradients(layers: Layers, all_of: list[F32], gradients: F32, layout: LayersAt, flat: F32) -> F32:
    """(n, dim) ∂/∂x from those of the last of `outputs`, (n, outputs); those of the layers are added to flat (size,).

    With y = relu(x·W + b): ∂W = xᵀ·∂, ∂b = Σ_n ∂, ∂x = ∂·Wᵀ (Rumelhart, Hinton, Williams 1986).
    """
    for i in range(len(layers) - 1, -1, -1):
        at, inputs, width = layout[i]
        bias = at + inputs * width
        if i + 1 < len(layers):
            rectified_gradients(all_of[i + 1], gradients)
        flat[at:bias].reshape(inputs, width)[:] += _outer(all_of[i], gradients)
        add_columns(gradients, flat[bias : bias + width])
        gradients = _product(gradients, np.ascontiguousarray(layers[i][0].T))
    return gradients


def _product(x: F32, weights: F32) -> F32:
    """x (n, inputs) · weights (inputs, outputs), `_BLOCK` rows at a time."""
    out = np.empty((len(x), weights.shape[1]), np.float32)
    whole = len(x) - len(x) % _BLOCK
    np.matmul(x[:whole].reshape(-1, _BLOCK, x.shape[1]), weights, out=out[:whole].reshape(-1, _BLOCK, out.shape[1]))
    np.matmul(x[whole:], weights, out=out[whole:])
    return out


def _outer(x: F32, gradients: F32) -> F32:
    """xᵀ · gradients of (n, inputs) and (n, outputs); of the narrow ones likewise, whose blocks' sums cost less."""
    if x.shape[1] * gradients.shape[1] >= _WIDE:
        wide: F32 = x.T @ gradients
        return wide
    whole = len(x) - len(x) % _BLOCK
    blocks, those = (one[:whole].reshape(-1, _BLOCK, one.shape[1]) for one in (x, gradients))
    out: F32 = np.matmul(blocks.transpose(0, 2, 1), those).sum(axis=0)
    out += x[whole:].T @ gradients[whole:]
    return out
