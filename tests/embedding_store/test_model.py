"""The published model: its tables, and that what is read back is what was written."""

import msgspec
import pytest
from pydantic import ValidationError

from embedding_store.model import ModelSettings
from embedding_store.spec import Adagrad, Sgd


@pytest.mark.parametrize(
    "model",
    [
        ModelSettings(),
        ModelSettings(dim=8, user_id_vector=True, dense_layers=(16, 4), optimizer=Sgd(learning_rate=0.1), shards=3),
        ModelSettings(
            clocks=(1.0,), learned_gates=False, popularity_weight=0.0, optimizer=Adagrad(epsilon=1e-3), seed=2**63 - 1
        ),
    ],
)
def test_a_document_is_the_model(model):
    assert ModelSettings.from_document(model.document()) == model


def test_a_document_of_another_release_is_refused():
    with pytest.raises(ValidationError, match="attention"):
        ModelSettings.from_document(b'{"dim": 8, "attention": 4}')


def test_a_document_of_an_older_release_is_the_model_it_was():
    """Settings that came later have the value that was the only one then."""
    document = msgspec.json.decode(ModelSettings(dim=8).document())
    for later in ("similarity", "temperature", "successors", "transition_weight"):
        del document[later]
    model = ModelSettings.from_document(msgspec.json.encode(document))
    assert model == ModelSettings(dim=8)
    assert (model.similarity, model.temperature, model.successors) == ("dot", 1.0, 0)


def test_tables_are_those_the_model_needs():
    plain = ModelSettings(dim=8, shards=3, seed=5, popularity_half_life=70, learned_gates=False)
    assert list(plain.tables()) == ["item", "history"]
    full = plain.model_copy(update={"user_id_vector": True, "dense_layers": (4,)})
    tables = full.tables()
    assert list(tables) == ["item", "history", "user", "dense"]
    assert tables["item"].seed != tables["user"].seed
    assert {tables[name].shards for name in ("item", "history", "user")} == {3}
    assert tables["dense"].shards == 1  # one version of all parameters
    assert (tables["item"].dim, tables["user"].dim, tables["history"].length) == (8, 8, 1024)
    assert tables["item"].popularity_half_life == 70
    assert (plain.output_dim, full.output_dim) == (8, 4)
    walked = plain.model_copy(update={"successors": 9, "item_max_rows": 30})
    assert list(walked.tables()) == ["item", "history", "next"]
    after = walked.tables()["next"]
    assert (after.kind, after.length, after.max_rows, after.shards) == ("sequence", 9, 30, 3)


def test_what_is_pooled_is_kept():
    with pytest.raises(ValidationError, match="seen_length 10 is below history_length 20"):
        ModelSettings(seen_length=10, history_length=20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 1},
        {"similarity": "cosine", "dense_layers": (4, 1)},
        {"similarity": "euclid"},
        {"temperature": 0},
        {"clocks": (0.0,)},
        {"clocks": (0.5, 1.1)},
        {"clocks": ()},
        {"dim": 7},
        {"popularity_weight": -1},
        {"dims": 64},
        {"shards": 0},
    ],
)
def test_what_can_not_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        ModelSettings(**wrong)


@pytest.mark.parametrize("layers", [(0,), (64, -1)])
def test_a_layer_has_a_width(layers):
    with pytest.raises(ValidationError):
        ModelSettings(dense_layers=layers)
