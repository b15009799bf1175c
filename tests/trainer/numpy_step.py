"""The learner's formula once more, in NumPy float64 and by hand: the oracle of its gradients, and a step without
TensorFlow for tests that are about something else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Tensor:
    """As much of a tensor as the learner asks for."""

    value: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.value


def forward(layers, x):
    """Activations before and after each layer."""
    kept = [x]
    for i, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if i + 1 < len(layers):
            x = np.maximum(x, 0)
        kept.append(x)
    return kept


def backward(layers, kept, gradient):
    """(gradient of the input, flat gradient of the layers)."""
    parts = []
    for i in range(len(layers) - 1, -1, -1):
        if i + 1 < len(layers):
            gradient = gradient * (kept[i + 1] > 0)
        parts = [(kept[i].T @ gradient).reshape(-1), gradient.sum(axis=0), *parts]
        gradient = gradient @ layers[i][0].T
    return gradient, np.concatenate(parts) if parts else np.zeros(0)


def softmax_step(pooled, items, bias, mask, weight, group, user_layers=(), item_layers=()):
    """(loss, d pooled, d items, d layers): Σ_i w_i (log Σ_{j in mask i} exp(u_i·v_j + b_j) − u_i·v_i − b_i)."""
    user_kept, item_kept = forward(user_layers, pooled), forward(item_layers, items)
    u, v = user_kept[-1], item_kept[-1]
    loss, du, dv = 0.0, np.zeros_like(u), np.zeros_like(v)
    for i in np.flatnonzero(weight > 0):
        start = i // group * group
        columns = start + np.flatnonzero(mask[i])
        logits = v[columns] @ u[i] + bias[columns]
        top = logits.max()
        total = np.log(np.exp(logits - top).sum()) + top
        loss += weight[i] * (total - u[i] @ v[i] - bias[i])
        push = weight[i] * (np.exp(logits - total) - (columns == i))
        du[i] = push @ v[columns]
        dv[columns] += push[:, None] * u[i]
    d_pooled, user_flat = backward(user_layers, user_kept, du)
    d_items, item_flat = backward(item_layers, item_kept, dv)
    return loss, d_pooled, d_items, np.concatenate([user_flat, item_flat])


def compile_step(model, group, dense):
    """Takes the place of `trainer.learner._compile_step`."""

    def step(pooled, items, bias, mask, weight):
        towers = dense._parameters.to_towers(dense._local.astype(np.float64))
        arrays = (np.asarray(a, np.float64) for a in (pooled, items, bias))
        out = softmax_step(*arrays, mask, weight, group, towers.user, towers.item)
        loss, d_pooled, d_items, flat = (np.asarray(a, np.float32) for a in out)
        return Tensor(loss), Tensor(d_pooled), Tensor(d_items), Tensor(flat if model.dense_layers else np.zeros(1))

    return step
