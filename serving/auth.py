"""The API key."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from pydantic import SecretStr

from serving.problems import Problem

HEADER = b"x-api-key"
EXEMPT = frozenset({"/livez", "/readyz"})
EMPTY_PAGES = frozenset({"/dashboard"})  # without data: it asks for a key, and then for data
DOCS = frozenset({"/docs", "/openapi.json"})


class ApiKeys:
    """Accepts any of several keys, for rotation. Without keys all may pass: settings allow that on loopback only."""

    def __init__(self, keys: Sequence[SecretStr], *, docs_without_key: bool) -> None:
        self._keys = [key.get_secret_value().encode() for key in keys]
        self._exempt = EXEMPT | EMPTY_PAGES | (DOCS if docs_without_key else frozenset())

    def check(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises Problem 401 unless the request carries a key or `path` is exempt.

        Every key is compared, in constant time: how long it takes says nothing about which matched how far.
        """
        if not self._keys or path in self._exempt:
            return
        given = [value for name, value in headers if name == HEADER]
        accepted = False
        if len(given) == 1:
            for key in self._keys:
                accepted |= hmac.compare_digest(key, given[0])
        if not accepted:
            raise Problem(
                401,
                "unauthorized",
                "send one of the configured keys in the X-API-Key header",
                headers={"WWW-Authenticate": 'ApiKey realm="towline"'},
            )
