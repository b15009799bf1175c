"""Whether a store's dense parameters are those of a model."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import SpecConflict, UnknownTable
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters

_SHAPING = ("dim", "history_length", "clocks", "learned_gates", "dense_layers", "successors")


def check_dense_layout(store: EmbeddingStore, model: ModelSettings) -> None:
    """Raises SpecConflict where the store has learned dense parameters of other shapes: they are one flat vector, and
    would be taken for something else. Raises StoreUnavailable.

    Known by the published model; one that can't be read, of a later release, can't be compared.
    """
    document = store.published_model()
    if document is None or not model.has_dense:
        return
    try:
        before = ModelSettings.from_document(document)
    except (ValidationError, msgspec.DecodeError):
        return
    if not before.has_dense or DenseParameters(before).shapes == DenseParameters(model).shapes:
        return
    try:
        if store.status("dense")[0].clock == 0:
            return
    except UnknownTable:  # nothing was ever learned there
        return
    differ = [name for name in _SHAPING if getattr(before, name) != getattr(model, name)]
    told = "; ".join(f"{name} was {getattr(before, name)} and is {getattr(model, name)}" for name in differ)
    raise SpecConflict(
        f"the store has dense parameters of another layout: {told}; set them in [model] as they were, or start with an "
        "empty store"
    )
