"""Made-up requests of every operation, good and bad, against what the OpenAPI document promises (schemathesis)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving.app import create_app
from serving.openapi import document
from serving.ranking_schemas import Interaction
from serving.service import Service
from serving.settings import ServingSettings
from tests.serving.conftest import MODEL, MakeWorld, load

EXAMPLES = 25  # of each operation and mode; derandomized, so that what fails for one fails for all
ENDLESS = "/dashboard/events"  # a stream, which an in-process client waits for: see test_dashboard.py
OPERATIONS = [(path, verb) for path, verbs in document()["paths"].items() if path != ENDLESS for verb in verbs]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Sink:
    """Takes all events."""

    def produce(self, events: Sequence[Interaction]) -> None:
        """Nothing is done with them."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def api(make_world: MakeWorld) -> Iterator[Any]:
    """The document as a running application serves it, with every route switched on."""
    world = make_world()
    service = Service(ServingSettings(events=True, max_k=100_000), events=Sink())
    load(service, world.store, MODEL)
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(service))
    service.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "verb"), OPERATIONS)
def test_answers_are_as_promised(api: Any, path: str, verb: str, mode: GenerationMode) -> None:
    operation = api[path][verb.upper()]
    if mode.is_negative and not (operation.body or operation.query or operation.path_parameters):
        return  # there is nothing to get wrong
    checks = [*CHECKS, positive_data_acceptance if mode.is_positive else negative_data_rejection]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        if mode.is_positive:
            case.body = _whole(case.body)
        case.call_and_validate(checks=checks)

    check()


def _whole(body: Any) -> Any:
    """With 30 where it has 30.0, which JSON Schema calls an integer and the service does not."""
    if isinstance(body, dict):
        return {name: _whole(value) for name, value in body.items()}
    if isinstance(body, list):
        return [_whole(value) for value in body]
    return int(body) if isinstance(body, float) and body.is_integer() else body
