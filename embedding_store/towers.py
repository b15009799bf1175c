"""The dense parts of both towers in NumPy: what serving computes, and what TensorFlow's gradients must belong to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, U64, EmbeddingStore
from embedding_store.dense_versions import read_dense
from embedding_store.model import ModelSettings

Layers = tuple[tuple[F32, F32], ...]
"""(weights (inputs, outputs), bias (outputs,)) of each layer of one tower."""


@dataclass(frozen=True, slots=True)
class Towers:
    """Dense parameters of both towers; empty tuples where the model has no dense layers."""

    user: Layers
    item: Layers


class DenseParameters:
    """Where each dense parameter lies in the `dense` table: one flat float32 vector, cut into rows of the table's dim.

    The value is `initial() + table`: the table holds only the sum of all workers' deltas.
    """

    def __init__(self, model: ModelSettings) -> None:
        self._seed = model.seed
        widths = (model.dim, *model.dense_layers)
        self._shapes = [] if not model.dense_layers else list(itertools.pairwise(widths))
        tower = sum(inputs * outputs + outputs for inputs, outputs in self._shapes)
        self.size = 2 * tower
        self._row = model.tables()["dense"].dim if self.size else 1
        self.rows = -(-self.size // self._row)

    @property
    def keys(self) -> U64:
        """(rows,) keys of the dense table."""
        return np.arange(self.rows, dtype=np.uint64)

    def initial(self) -> F32:
        """(size,) Glorot-uniform weights and zero biases (Glorot & Bengio 2010); a pure function of the seed."""
        rng = np.random.Generator(np.random.PCG64(self._seed))
        parts = []
        for inputs, outputs in 2 * self._shapes:
            limit = np.sqrt(6.0 / (inputs + outputs))
            parts += [(2.0 * rng.random(inputs * outputs) - 1.0) * limit, np.zeros(outputs)]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)

    def to_rows(self, flat: F32) -> F32:
        """(size,) → (rows, dim), zero-padded."""
        padded = np.zeros(self.rows * self._row, np.float32)
        padded[: self.size] = flat
        return padded.reshape(self.rows, self._row)

    def layout(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """(start of the weights in the flat vector, inputs, outputs) of each layer of the user and the item tower.

        The bias follows its weights.
        """
        layers = []
        at = 0
        for inputs, outputs in 2 * self._shapes:
            layers.append((at, inputs, outputs))
            at += inputs * outputs + outputs
        return layers[: len(self._shapes)], layers[len(self._shapes) :]

    def to_towers(self, flat: F32) -> Towers:
        """Views of (size,) as layers."""

        def views(layers: list[tuple[int, int, int]]) -> Layers:
            ends = [(at, at + i * o, at + i * o + o, (i, o)) for at, i, o in layers]
            return tuple((flat[at:bias].reshape(shape), flat[bias:end]) for at, bias, end, shape in ends)

        user, item = self.layout()
        return Towers(views(user), views(item))

    def read(self, store: EmbeddingStore) -> F32:
        """(size,) the parameters as they stand in the store, all of one version. Raises StoreUnavailable."""
        return self.read_version(store)[1]

    def read_version(self, store: EmbeddingStore) -> tuple[int, F32]:
        """(clock of the dense table, (size,) parameters of exactly then). Raises StoreUnavailable."""
        if not self.size:
            return 0, np.zeros(0, np.float32)
        status, rows = read_dense(store, self.keys)
        return status.clock, self.initial() + rows.reshape(-1)[: self.size]


def forward(layers: Layers, x: F32) -> F32:
    """(n, inputs) → (n, outputs): ReLU between layers, none after the last; `x` itself where there are no layers."""
    for i, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if i + 1 < len(layers):
            x = np.maximum(x, np.float32(0.0))
    return x
