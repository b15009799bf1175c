"""Which representation a client accepts (RFC 9110, 12.5.1)."""

from __future__ import annotations

from functools import lru_cache

from serving.problems import Problem

JSON = "application/json"
RAW = "application/octet-stream"


@lru_cache(maxsize=64)  # clients send the same few values for ever; bounded, since anyone may send others
def _best(accept: str, offered: tuple[str, ...]) -> str | None:
    best: tuple[float, str] | None = None
    for media_type in offered:
        quality = _quality(accept, media_type)
        if quality > 0 and (best is None or quality > best[0]):
            best = (quality, media_type)
    return best[1] if best else None


def _quality(accept: str, media_type: str) -> float:
    """The q of the most specific range that matches; 0 if none does."""
    found = (-1, 0.0)
    for entry in accept.split(","):
        name, *parameters = [part.strip().lower() for part in entry.split(";")]
        specificity = {media_type: 2, media_type.split("/", maxsplit=1)[0] + "/*": 1, "*/*": 0}.get(name, -1)
        if specificity > found[0]:
            found = (specificity, _q(parameters))
    return found[1]


def _q(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def representation(accept: str | None, offered: tuple[str, ...] = (JSON, RAW)) -> str:
    """The offered media type that `accept` likes best, the first among equals. Raises Problem 406."""
    if accept is None or not accept.strip():
        return offered[0]
    best = _best(accept[:1000], offered)
    if best is None:
        raise Problem(406, "not-acceptable", f"this resource is served as {' or '.join(offered)}: accept one of them")
    return best
