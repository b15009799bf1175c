"""Accept headers."""

from __future__ import annotations

import pytest

from serving.negotiate import JSON, RAW, representation
from serving.problems import Problem


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        ("application/*", JSON),
        (RAW, RAW),
        ("application/json;q=0.2, application/octet-stream", RAW),
        ("application/octet-stream;q=0.1, application/json", JSON),
        ("text/html, */*;q=0.1", JSON),
        ("*/*, application/json;q=0", RAW),
        ("APPLICATION/OCTET-STREAM", RAW),
    ],
)
def test_the_best_of_what_is_accepted(accept: str | None, chosen: str) -> None:
    assert representation(accept) == chosen


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "application/xml",
        "image/*",
        "application/json;q=0",
        "*/*;q=0",
        "nonsense",
        "application/json;q=many",
    ],
)
def test_nothing_acceptable_is_406(accept: str) -> None:
    with pytest.raises(Problem) as refused:
        representation(accept)
    assert refused.value.status == 406
