"""Request bodies: read under a cap, decoded into a request or refused with the field and the remedy."""

from __future__ import annotations

import asyncio
import difflib
import re
from typing import Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from serving.problems import Problem, invalid

Decoded = TypeVar("Decoded", bound=msgspec.Struct)
_READ_S = 30.0  # for the whole body: a client that trickles bytes must not hold its place for ever
_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(\$.*)`)?$", re.DOTALL)
_PLACE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)


class BodyReader(Generic[Decoded]):
    """Decodes JSON bodies of one request type. Stateless but for the prepared decoder."""

    def __init__(self, kind: type[Decoded], max_bytes: int) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._fields = kind.__struct_fields__
        self._max_bytes = max_bytes

    async def read(self, request: Request) -> Decoded:
        """The request's body. Raises Problem 400, 408, 413, 415 or 422."""
        _check_media_type(request.headers.get("content-type"))
        body = await read_body(request, self._max_bytes)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise self._refusal(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(400, "malformed-json", f"the body is not JSON: {error}") from None
        except RecursionError:
            raise Problem(400, "malformed-json", "the body is nested too deeply") from None

    def _refusal(self, message: str) -> Problem:
        if unknown := _UNKNOWN.search(message):
            name = unknown[1]
            near = difflib.get_close_matches(name, self._fields, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(self._fields)}"
            return invalid(name[:100], f"unknown field '{name[:100]}': {remedy}")
        place = _PLACE.search(message)
        if place is None:
            missing = re.search(r"missing required field `(\w+)`", message)
            return invalid(missing[1] if missing else "", message)
        return invalid(place[1], f"{place[1]}: {message[: place.start()]}")


def _check_media_type(value: str | None) -> None:
    """JSON, or nothing said. Raises Problem 415."""
    if value is None:
        return
    media_type = value.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            415,
            "unsupported-media-type",
            "send the body as Content-Type: application/json",
            headers={"Accept": "application/json"},
        )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises Problem 413 over the cap, by the announced or the actual length, whichever comes first."""
    announced = request.headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_READ_S):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise Problem(408, "request-timeout", f"the body did not arrive within {_READ_S:.0f} s") from None
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the connection closed before the body was complete") from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        413,
        "too-large",
        f"the body is over {max_bytes} bytes: split the request, or raise serving.max_body_bytes",
        max_body_bytes=max_bytes,
    )
