"""The sync client."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, cast

import httpx

from towline_client import answers, calls
from towline_client.calls import Call, Event, Fallback, Features, Filter, Id, Tower, outcome
from towline_client.errors import TowlineError, Unreachable
from towline_client.retries import Retry


class Client:
    """Calls a service. Thread-safe; keep one for long, as it keeps connections: `with Client(url) as client:`.

    All methods raise the errors of `towline_client.errors`. An integer id and its decimal string are the same.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """timeout_s: for each try. transport: httpx's, as for TLS settings, proxies or an application in this process.

        Nothing is connected to before the first call.
        """
        headers = {"X-API-Key": api_key} if api_key is not None else {}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout_s, transport=transport)
        self._retry = Retry() if retry is None else retry

    def embedding(
        self, tower: Tower, identity: Id, *, on_missing: Literal["error", "initial"] = "error"
    ) -> answers.Embedding:
        """One vector (dim,). Of an unknown id: NotFound, or the vector it would start with."""
        return cast("answers.Embedding", self._call(calls.embedding(tower, identity, on_missing)))

    def embeddings(
        self, tower: Tower, ids: Iterable[Id], *, on_missing: Literal["null", "initial", "error"] = "null"
    ) -> answers.Embeddings:
        """Vectors (dim,) of many ids. Of an unknown id: None, the vector it would start with, or NotFound for all."""
        return cast("answers.Embeddings", self._call(calls.embeddings(tower, ids, on_missing)))

    def recommend(
        self,
        user_id: Id,
        *,
        k: int = 20,
        exclude: Iterable[Id] = (),
        exclude_seen: bool = True,
        candidates: Iterable[Id] | None = None,
        fallback: Fallback = "popular",
        features: Features | None = None,
        filter: Filter | None = None,  # noqa: A002 - as the service calls it
    ) -> answers.Recommendation:
        """The k best items. A user without history: popular items, items near the mean of those, or NotFound.

        features: the request's, as far as the model declares such. filter: what declared features items must have.
        """
        choice = calls.choice(
            k, exclude, candidates, exclude_seen=exclude_seen, fallback=fallback, features=features, wanted=filter
        )
        return cast("answers.Recommendation", self._call(calls.recommend(user_id, choice)))

    def recommend_batch(
        self,
        user_ids: Iterable[Id],
        *,
        k: int = 20,
        exclude: Iterable[Id] = (),
        exclude_seen: bool = True,
        candidates: Iterable[Id] | None = None,
        fallback: Fallback = "popular",
        features: Features | None = None,
        filter: Filter | None = None,  # noqa: A002 - as the service calls it
    ) -> answers.Recommendations:
        """`recommend` for several users at once."""
        choice = calls.choice(
            k, exclude, candidates, exclude_seen=exclude_seen, fallback=fallback, features=features, wanted=filter
        )
        return cast("answers.Recommendations", self._call(calls.recommend_batch(user_ids, choice)))

    def similar(
        self,
        item_ids: Iterable[Id],
        *,
        k: int = 20,
        exclude: Iterable[Id] = (),
        candidates: Iterable[Id] | None = None,
        filter: Filter | None = None,  # noqa: A002
    ) -> answers.Similar:
        """The k items nearest to the given ones. NotFound if none of them is known."""
        return cast("answers.Similar", self._call(calls.similar(item_ids, k, exclude, candidates, filter)))

    def score(
        self,
        user_id: Id,
        item_ids: Iterable[Id],
        *,
        fallback: Fallback = "popular",
        features: Features | None = None,
    ) -> answers.Scores:
        """What `recommend` ranks by, of each item."""
        return cast("answers.Scores", self._call(calls.score(user_id, item_ids, fallback, features)))

    def explain(self, user_id: Id, item_id: Id, *, features: Features | None = None) -> answers.Explanation:
        """Why an item stands where it stands for a user. NotFound for an unknown item."""
        return cast("answers.Explanation", self._call(calls.explain(user_id, item_id, features)))

    def send_events(self, events: Iterable[Event]) -> int:
        """Have events produced to the topic; returns how many, all of them. NotFound where the service takes none.

        After Unavailable of kind `stream-away`, and after Unreachable, some may have been taken.
        """
        return cast("int", self._call(calls.send_events(events)))

    def model(self) -> answers.Model:
        """What is being served."""
        return cast("answers.Model", self._call(calls.model()))

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, call: Call) -> Any:
        tried = 0
        while True:
            try:
                return self._once(call)
            except TowlineError as error:
                tried += 1
                wait_s = self._retry.wait_s(call, error, tried)
                if wait_s is None:
                    raise
            time.sleep(wait_s)

    def _once(self, call: Call) -> Any:
        try:
            response = self._http.request(call.method, call.path, json=call.json, params=call.params)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url} did not answer: {error or type(error).__name__}") from error
        return outcome(call, response)
