"""Ids from paths and JSON."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.identity import canonical, key_and_check
from serving import ids
from serving.problems import Problem

TEXT = st.text(min_size=1, max_size=40)


@given(TEXT)
def test_a_path_round_trips_with_slashes_plain_or_encoded(text: str) -> None:
    for safe in ("", "/"):
        path = f"/v1/embeddings/item/{quote(text, safe=safe)}".encode()
        assert ids.from_path(path, 3) == text.encode()


@given(st.one_of(TEXT, st.integers(-(2**70), 2**70)))
def test_keys_are_those_of_the_store(entity: str | int) -> None:
    assert ids.key_of(canonical(entity)) == key_and_check(canonical(entity))[0]


@pytest.mark.parametrize(("text", "number"), [("42", 42), ("0", 0), (str(2**63 - 1), 2**63 - 1), ("-5", -5)])
def test_an_integer_and_its_decimal_string_are_one_id(text: str, number: int) -> None:
    assert ids.from_json(text, "id") == ids.from_json(number, "id")
    assert ids.key_of(canonical(text)) == ids.key_of(canonical(number))


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/embeddings/item/",
        b"/v1/embeddings/item/%ff",
        b"/v1/embeddings/item/" + b"x" * 513,
        b"/v1/embeddings/item/" + b"%C3%A9" * 257,
    ],
)
def test_unusable_path_ids_are_refused(path: bytes) -> None:
    with pytest.raises(Problem) as refused:
        ids.from_path(path, 3)
    assert refused.value.status == 422
    assert refused.value.extensions == {"field": "id"}


def test_many_names_the_first_bad_one() -> None:
    with pytest.raises(Problem) as refused:
        ids.many(["a", 7, "", "b" * 513], "exclude")
    assert refused.value.extensions == {"field": "exclude[2]"}
    assert ids.many(["b" * 512], "exclude") == [b"b" * 512]


@pytest.mark.parametrize(
    "entities",
    [
        [],
        ["a"],
        ["a", "bc", "42", "007", "a\nb", "x" * 512],
        ["a", 42, "b"],
        [7],
        ["é", "a/b c", "日本"],
        [f"id{n}" for n in range(300)],
    ],
)
def test_keys_of_many_are_those_of_each(entities: list[str | int]) -> None:
    assert ids.keys_of_many(entities, "ids").tolist() == [key_and_check(canonical(e))[0] for e in entities]


@pytest.mark.parametrize("bad", ["", "x" * 513, "é" * 257])
def test_keys_of_many_name_the_first_bad_one(bad: str) -> None:
    with pytest.raises(Problem) as refused:
        ids.keys_of_many(["a", "b", bad, ""], "ids")
    assert refused.value.extensions == {"field": "ids[2]"}


@pytest.mark.parametrize("entities", [[""], ["\n"], ["\na"], ["a\n", "b"], ["a\n", ""], ["", "a\n"]])
def test_line_feeds_in_ids_are_theirs(entities: list[str]) -> None:
    if "" in entities:
        with pytest.raises(Problem) as refused:
            ids.keys_of_many(entities, "ids")
        assert refused.value.extensions == {"field": f"ids[{entities.index('')}]"}
    else:
        assert ids.keys_of_many(entities, "ids").tolist() == [key_and_check(e.encode())[0] for e in entities]
