"""The items' side of a pass: a row goes through the layers once, however many examples have it as their target."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32, I64
from embedding_store.towers import Layers
from native.pooling import add_rows
from trainer.dense_layers import LayersAt, input_gradients, outputs

_TOGETHER = 1024
"""Rows that are in hand at a time: what the layers make of them stays in the second cache."""


class ItemTower:
    """What the layers make of some of u items, and the way back. Costs what those cost, not what their examples do."""

    def __init__(self, layers: Layers, layout: LayersAt, items: F32, targets: I64) -> None:
        """items (u, dim); targets (n,) numbers of those that are wanted, repeats allowed."""
        self._layers, self._layout = layers, layout
        wanted = np.zeros(len(items), bool)
        wanted[targets] = True
        rows = np.flatnonzero(wanted)
        self._parts = [rows[start : start + _TOGETHER] for start in range(0, len(rows), _TOGETHER)]
        self._made: list[list[F32]] = []
        self.outputs: F32 = np.zeros((len(items), layers[-1][1].shape[0]), np.float32)
        """(u, output_dim); zeros for what is not wanted."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told by loss and gradients
            for part in self._parts:
                self._made.append(outputs(layers, np.take(items, part, axis=0)))
                self.outputs[part] = self._made[-1][-1]
        self.gradients: F32 = np.zeros_like(self.outputs)
        """(u, output_dim) of the loss by `outputs`: to be added up by the caller."""

    def back(self, item_gradients: F32, flat: F32) -> None:
        """Add what `gradients` says of the items' rows to item_gradients (u, dim), of the layers to flat (size,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            for part, made in zip(self._parts, self._made, strict=True):
                found = np.take(self.gradients, part, axis=0)
                add_rows(input_gradients(self._layers, made, found, self._layout, flat), part, item_gradients)
