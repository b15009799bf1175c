"""What is learned besides rows, and how a user's vector is made of it: what serving computes, and what the trainer's
gradients must belong to.

User of history i_0 … i_{n−1} (i_0 the newest), of all ever seen `length` long, bucket b = min(⌊log2(length + 1)⌋, 7):

    h_v = Σ_k softmax_k(p_v[k]) · O_{i_k}[part v]      over the k whose item has a row
    x   = [s_1[b]·h_1 ; … ; s_V[b]·h_V] (+ own id vector), through the user's layers
    score of item i = x · O_i + a[b] · lp_i + max(0, g[b]) · direct_i + max(0, h[b]) · near_i
    lp_i = ln(max(decayed popularity, floor)), direct_i and near_i = evidence from what came after i_0 …
    (`embedding_store.transitions`)

Cosine similarity: x and O_i are divided by their lengths; temperature T: x by T.

At first p_v[k] = k·ln(recency of clock v), s = 1, a = popularity_weight, g = h = transition_weight.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U64, EmbeddingStore
from embedding_store.dense_versions import read_dense
from embedding_store.model import ModelSettings

Layers = tuple[tuple[F32, F32], ...]
"""(weights (inputs, outputs), bias (outputs,)) of each layer of one tower."""


SHORTEST = 1e-12
"""Squared length below which a vector is not made longer by cosine similarity."""

BUCKETS = 8
"""Of history lengths; the last begins at 127."""


@dataclass(frozen=True, slots=True)
class Gates:
    """How a history becomes a vector."""

    logits: F32  # (clocks, history_length) p
    scales: F32  # (clocks, BUCKETS) s
    prior: F32  # (BUCKETS,) a
    transition: F32  # (3, BUCKETS) g, h, what they are learned with; (0, BUCKETS) where the model keeps no transitions

    @property
    def worth(self) -> F32:
        """(2, BUCKETS) max(0, g) and max(0, h): a transition never speaks against an item."""
        out: F32 = np.maximum(self.transition[:2], np.float32(0.0))
        return out

    @property
    def size(self) -> int:
        """Values of all four."""
        return self.logits.size + self.scales.size + self.prior.size + self.transition.size

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of each."""
        return self.logits.shape, self.scales.shape, self.prior.shape, self.transition.shape

    def flat(self) -> F32:
        """(size,) one after the other."""
        return np.concatenate(
            [self.logits.reshape(-1), self.scales.reshape(-1), self.prior, self.transition.reshape(-1)]
        )

    def of(self, flat: F32) -> Gates:
        """Views of (size,) in the shapes of this."""
        a = self.logits.size
        b = a + self.scales.size
        c = b + self.prior.size
        logits, scales = flat[:a].reshape(self.logits.shape), flat[a:b].reshape(self.scales.shape)
        return Gates(logits, scales, flat[b:c], flat[c : self.size].reshape(self.transition.shape))


def initial_gates(model: ModelSettings) -> Gates:
    """What the gates begin as, and stay where they are not learned."""
    logits = np.outer(np.log(model.clocks), np.arange(model.history_length))
    transition = [model.transition_weight, model.transition_weight, 1.0] if model.successors else []
    return Gates(
        logits.astype(np.float32),
        np.ones((len(model.clocks), BUCKETS), np.float32),
        np.full(BUCKETS, model.popularity_weight, np.float32),
        np.repeat(np.array(transition, np.float32)[:, None], BUCKETS, axis=1),
    )


def bucket_of(length: I64) -> I64:
    """(n,) bucket of histories of `length` (n,) items ever."""
    exponents: I64 = np.frexp(length + 1.0)[1].astype(np.int64)
    return np.minimum(exponents - 1, BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class Towers:
    """All of the dense parameters; empty tuples where the model has no dense layers."""

    user: Layers
    item: Layers
    gates: Gates


class DenseParameters:
    """Where each dense parameter lies in the `dense` table: one flat float32 vector, cut into rows of the table's dim.

    Gates come first where they are learned, then the layers. The value is `initial() + table`: the table holds only the
    sum of all workers' deltas.
    """

    def __init__(self, model: ModelSettings) -> None:
        self._seed = model.seed
        widths = (model.dim, *model.dense_layers)
        self._shapes = [] if not model.dense_layers else list(itertools.pairwise(widths))
        tower = sum(inputs * outputs + outputs for inputs, outputs in self._shapes)
        self._gates = initial_gates(model)
        self.gates = self._gates.size if model.learned_gates else 0
        self.size = self.gates + 2 * tower
        self._row = model.tables()["dense"].dim if self.size else 1
        self.rows = -(-self.size // self._row)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of all parameters in their order: models that differ here read one another's table as nonsense."""
        gates = self._gates.shapes if self.gates else ()
        return (*gates, *self._shapes)

    @property
    def keys(self) -> U64:
        """(rows,) keys of the dense table."""
        return np.arange(self.rows, dtype=np.uint64)

    def initial(self) -> F32:
        """(size,) gates, then Glorot-uniform weights and zero biases (Glorot & Bengio 2010). Pure."""
        rng = np.random.Generator(np.random.PCG64(self._seed))
        parts = [self._gates.flat().astype(np.float64)] if self.gates else []
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
        at = self.gates
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
        return Towers(views(user), views(item), self._gates.of(flat) if self.gates else self._gates)

    def read(self, store: EmbeddingStore) -> F32:
        """(size,) the parameters as they stand in the store, all of one version. Raises StoreUnavailable."""
        return self.read_version(store)[1]

    def read_version(self, store: EmbeddingStore) -> tuple[int, F32]:
        """(clock of the dense table, (size,) parameters of exactly then). Raises StoreUnavailable."""
        if not self.size:
            return 0, np.zeros(0, np.float32)
        status, rows = read_dense(store, self.keys)
        return status.clock, self.initial() + rows.reshape(-1)[: self.size]


def user_outputs(model: ModelSettings, layers: Layers, x: F32) -> F32:
    """(n, output_dim) user vectors of pooled histories (n, dim): a score is their dot product with an item's."""
    out = _finished(model, forward(layers, x))
    return out if model.temperature == 1.0 else out * np.float32(1.0 / model.temperature)


def item_outputs(model: ModelSettings, layers: Layers, rows: F32) -> F32:
    """(n, output_dim) item vectors of rows (n, dim)."""
    return _finished(model, forward(layers, rows))


def _finished(model: ModelSettings, x: F32) -> F32:
    if model.similarity == "dot":
        return x
    out: F32 = x / _lengths(x)[:, None]
    return out


def _lengths(x: F32) -> F32:
    """(n,) L2 norms, none of which is nearly 0."""
    squares = np.einsum("ij,ij->i", x, x, dtype=np.float32)
    return np.asarray(np.sqrt(np.maximum(squares, np.float32(SHORTEST))), np.float32)


def user_factor(model: ModelSettings, layers: Layers, x: F32) -> F32:
    """(n,) what `user_outputs` multiplies forward(layers, x) by: 1 / temperature, and 1 / norm for cosines."""
    factor = np.full(len(x), 1.0 / model.temperature, np.float32)
    if model.similarity == "dot":
        return factor
    return factor / _lengths(forward(layers, x))


def item_factor(model: ModelSettings, layers: Layers, rows: F32) -> F32:
    """(n,) what `item_outputs` multiplies forward(layers, rows) by: 1, and for cosines 1 / norm."""
    if model.similarity == "dot":
        return np.ones(len(rows), np.float32)
    return np.float32(1.0) / _lengths(forward(layers, rows))


def pull_back(layers: Layers, x: F32, gradient: F32) -> F32:
    """(n, inputs): gradient of gradient (n, outputs) · forward(layers, x) with respect to x (n, inputs).

    A ReLU network is affine around x: forward(layers, x) · gradient = x · pull_back(…) + a constant of that region.
    """
    alive = []
    for i, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if i + 1 < len(layers):
            alive.append(x > 0)
            x = np.maximum(x, np.float32(0.0))
    for i, (weights, _) in reversed(list(enumerate(layers))):
        if i + 1 < len(layers):
            gradient = gradient * alive[i]
        gradient = gradient @ weights.T
    return gradient


def forward(layers: Layers, x: F32) -> F32:
    """(n, inputs) → (n, outputs): ReLU between layers, none after the last; `x` itself where there are no layers."""
    for i, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if i + 1 < len(layers):
            x = np.maximum(x, np.float32(0.0))
    return x
