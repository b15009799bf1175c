"""A worker's copy of the dense parameters: moved locally at every step, merged through the store every so often."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from embedding_store.contract import F32, U64, EmbeddingStore
from embedding_store.dense_versions import DenseVersions
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, Gates, Towers, initial_gates

TensorLayers = list[tuple[tf.Tensor, tf.Tensor]]
_ACCUMULATOR = np.float32(0.1)


class Mark(NamedTuple):
    """A worker's dense parameters at some moment."""

    local: F32
    squares: F32
    examples: int


class DenseWorker:
    """Local parameters with local Adagrad (its state restarts with the worker).

    Layers move by the mean gradient of a step's examples, gates by its sum.
    """

    def __init__(
        self, store: EmbeddingStore, model: ModelSettings, learning_rate: float, gate_learning_rate: float = 0.02
    ) -> None:
        self._store, self._model = store, model
        self._parameters = DenseParameters(model)
        self._base = np.zeros(self._parameters.size, np.float32)
        self._local = self._base.copy()
        self._squares = np.full(self._parameters.size, _ACCUMULATOR, np.float32)
        self._rates = np.full(self._parameters.size, learning_rate, np.float32)
        self._rates[: self._parameters.gates] = gate_learning_rate
        self._fixed = initial_gates(model)
        self._base_clock = 0
        self._versions: DenseVersions | None = None
        self.examples = 0
        self._variable: tf.Variable | None = None

    @property
    def variable(self) -> tf.Variable:
        """The parameters as TensorFlow's; made when first asked for, and the same as here from then on."""
        if self._variable is None:
            self._variable = tf.Variable(tf.zeros([max(1, self._parameters.size)]), trainable=False)
            self._tell_tensorflow()
        return self._variable

    def _tell_tensorflow(self) -> None:
        if self._variable is not None and self._parameters.size:
            self._variable.assign(self._local)

    @property
    def gates(self) -> Gates:
        """As they stand here: views, not to be written."""
        return self._fixed.of(self._local) if self._parameters.gates else self._fixed

    def towers(self, flat: tf.Tensor) -> tuple[TensorLayers, TensorLayers]:
        """(user, item) layers as slices of the flat tensor; for use inside the compiled step."""

        def slices(layers: list[tuple[int, int, int]]) -> TensorLayers:
            ends = [(at, at + i * o, at + i * o + o, (i, o)) for at, i, o in layers]
            return [(tf.reshape(flat[at:bias], shape), flat[bias:end]) for at, bias, end, shape in ends]

        user, item = self._parameters.layout()
        return slices(user), slices(item)

    @property
    def values(self) -> Towers:
        """Gates and layers as they stand here: views, not to be written."""
        return self._parameters.to_towers(self._local)

    @property
    def size(self) -> int:
        """Values of all dense parameters."""
        return self._parameters.size

    @property
    def layout(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Where the layers of the user's and the item's tower lie: see `DenseParameters.layout`."""
        return self._parameters.layout()

    def mark(self) -> Mark:
        """What `undo` goes back to."""
        return Mark(self._local.copy(), self._squares.copy(), self.examples)

    def undo(self, mark: Mark) -> None:
        """Everything is as it was at `mark`, if nothing was read since."""
        self._local, self._squares, self.examples = mark
        self._tell_tensorflow()

    def read(self) -> None:
        """Forget local changes and take the store's values. Raises StoreUnavailable."""
        if not self._parameters.size:
            return
        self._base_clock, self._base = self._parameters.read_version(self._store)
        self._local = self._base.copy()
        self.examples = 0
        self._tell_tensorflow()

    def step(self, gradients: F32, examples: int, gates: Gates | None = None) -> None:
        """w ← w − η·g/√s locally, s ← s + g²; `gradients` (size,) of layers summed over `examples`, `gates` summed."""
        if not self._parameters.size:
            return
        g = np.zeros(self._parameters.size, np.float32)
        if self._model.dense_layers:
            g[self._parameters.gates :] = gradients[self._parameters.gates :] / np.float32(max(1, examples))
        if gates is not None and self._parameters.gates:
            g[: self._parameters.gates] = gates.flat()
        self._squares += g * g
        self._local -= self._rates * g / np.sqrt(self._squares)
        self._tell_tensorflow()
        self.examples += examples

    def keep_version(self, generation: int, every_s: float) -> None:
        """Keep a version of the table where the newest is older than `every_s`. Raises GenerationError."""
        if self._versions is None:
            self._versions = DenseVersions(self._store, self._parameters.keys)
        if time.time() - self._versions.newest_ms() / 1000 >= every_s:
            self._versions.keep(generation)

    def delta(self, events: int, merge: str) -> tuple[F32, U64]:
        """((rows, dim) change since the base, (rows,) keys).

        merge "average" scales it by n/(n + m): n events of ours, m applied by others since our base (semi-synchronous
        averaging); "sum" does not.
        """
        change = self._local - self._base
        if merge == "average":
            others = max(0, self._store.status("dense")[0].clock - self._base_clock)
            change *= np.float32(events / max(1, events + others))
        return self._parameters.to_rows(change), self._parameters.keys
