"""Events over HTTP, for whoever has no Kafka client: checked, produced, acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from serving import ids
from serving.body import BodyReader
from serving.embeddings import too_many
from serving.errors import EventRefused, StreamAway
from serving.negotiate import JSON
from serving.problems import Problem, invalid, unavailable
from serving.ranking_schemas import Accepted, EventsRequest, Interaction
from serving.service import Service

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Where events go. The composition root hands one in: serving knows no Kafka. Used by one thread."""

    def produce(self, events: Sequence[Interaction]) -> None:
        """Check all events, then produce them, a user's in their order; returns once they are acknowledged.

        Raises EventRefused before anything was produced, StreamAway within seconds.
        """

    def close(self) -> None:
        """Disconnect. Idempotent."""


class EventRoutes:
    """`/v1/events`. One thread of its own: a broker that is away must not keep threads from ranking."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = BodyReader(EventsRequest, service.settings.max_body_bytes)

    async def accept(self, request: Request) -> Response:
        """POST /v1/events"""
        sink = self._service.events
        if sink is None:
            raise Problem(404, "events-off", "events are not taken here: set serving.events, or produce them to Kafka")
        asked = await self._body.read(request)
        cap = self._service.settings.max_batch
        if len(asked.events) > cap:
            raise too_many("events", len(asked.events), cap)
        for i, event in enumerate(asked.events):
            ids.from_json(event.user_id, f"events[{i}].user_id")
            ids.from_json(event.item_id, f"events[{i}].item_id")
        try:
            await self._service.producing.run(partial(sink.produce, asked.events))
        except EventRefused as error:
            place = f"events[{error.index}].{error.field}"
            raise invalid(place, f"{place}: {error}") from error
        except StreamAway as error:
            log.warning("events were not acknowledged: %s", ascii(str(error)))
            raise unavailable(
                "stream-away",
                "the broker did not acknowledge: some of these events may have been taken, and would count twice if "
                "they are sent again",
            ) from error
        return Response(msgspec.json.encode(Accepted(len(asked.events))), 202, media_type=JSON)
