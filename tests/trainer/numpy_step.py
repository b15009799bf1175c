"""The learner's formula once more, in NumPy float64 and by hand: the oracle of its gradients, and a step without
TensorFlow for tests that are about something else."""

from __future__ import annotations

import numpy as np

from trainer.softmax_step import Gradients


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


def softmax_step(
    users, items, prior, popularity, bias, mask, weight, group, smoothing=0.0, user_layers=(), item_layers=()
):
    """(loss, d users, d items, d prior, d layers) of Σ_i w_i·cross entropy of (1 − ε on i, ε evenly) and the softmax
    over mask i of u_i·v_j + prior_i·popularity_j + b_j."""
    user_kept, item_kept = forward(user_layers, users), forward(item_layers, items)
    u, v = user_kept[-1], item_kept[-1]
    loss, du, dv, d_prior = 0.0, np.zeros_like(u), np.zeros_like(v), np.zeros(len(u))
    for i in np.flatnonzero(weight > 0):
        start = i // group * group
        columns = start + np.flatnonzero(mask[i])
        logits = v[columns] @ u[i] + prior[i] * popularity[columns] + bias[columns]
        top = logits.max()
        total = np.log(np.exp(logits - top).sum()) + top
        target = np.full(len(columns), smoothing / len(columns)) + (1 - smoothing) * (columns == i)
        loss += weight[i] * (total - target @ logits)
        push = weight[i] * (np.exp(logits - total) - target)
        du[i] = push @ v[columns]
        dv[columns] += push[:, None] * u[i]
        d_prior[i] = push @ popularity[columns]
    d_users, user_flat = backward(user_layers, user_kept, du)
    d_items, item_flat = backward(item_layers, item_kept, dv)
    return loss, d_users, d_items, d_prior, np.concatenate([user_flat, item_flat])


def compile_step(model, settings, dense, *, on_accelerator):
    """Takes the place of `trainer.learner._compile_step`: users before their layers, items behind theirs."""

    def step(users, items, prior, popularity, bias, mask, weight):
        towers = dense._parameters.to_towers(dense._local.astype(np.float64))
        arrays = (np.asarray(a, np.float64) for a in (users, items, prior, popularity, bias))
        group, smoothing = mask.shape[1], settings.label_smoothing
        loss, *found, of_users = softmax_step(*arrays, mask, weight, group, smoothing, towers.user)
        flat, at = np.zeros(dense.size), dense._parameters.gates
        flat[at : at + len(of_users)] = of_users
        return Gradients(float(loss), *(np.asarray(a, np.float32) for a in (*found, flat)))

    return step
