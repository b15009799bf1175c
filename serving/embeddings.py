"""Vectors by id: one, or a batch."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from embedding_store.contract import F32, U64, Bool
from serving import ids, rows
from serving.body import BodyReader
from serving.floats import rows_json, vector_json
from serving.negotiate import JSON, RAW, representation
from serving.problems import Problem, invalid, not_found
from serving.rows import TowerRow, TowerRows
from serving.schemas import BatchRequest, Embedding, Embeddings, Tower
from serving.service import Live, Service
from serving.staleness import as_of, stale_headers
from serving.times import age_s, ages_s, iso, now_ms

U8 = npt.NDArray[np.uint8]

_INLINE = {"json": 16, "base64": 256, "raw": 1024}
"""Ids answered on the loop: in some 200 µs, no more than a change of threads costs. Others would feel more."""


class EmbeddingRoutes:
    """`/v1/embeddings/…`. Items come from the mirror, on the loop where that can't wait; users from the store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = BodyReader(BatchRequest, service.settings.max_body_bytes)

    async def lookup(self, request: Request) -> Response:
        """GET /v1/embeddings/{tower}/{id}"""
        tower = rows.tower_of(request.path_params["tower"])
        identity = ids.from_path(request.scope.get("raw_path") or b"", 3)
        media_type = representation(request.headers.get("accept"))
        query = request.scope["query_string"]
        missing_as = request.query_params.get("on_missing", "error") if query else "error"
        if missing_as not in ("error", "initial"):
            raise invalid("on_missing", "on_missing is error or initial")
        service, live = self._service, self._service.require_live()
        keys = np.array([ids.key_of(identity)], np.uint64)
        row = rows.one_at_once(service, live, keys) if tower == "item" else None
        if row is None:
            found = await service.offload.run(partial(rows.read, service, live, tower, keys))
            row = rows.first_of(found)
        if not row.known:
            if missing_as == "error":
                raise not_found(f"no {tower} has the id {identity.decode()!r}", id=identity.decode())
            row = replace(row, vector=(await self._initial(live, tower, keys))[0])
        return self._one(live, tower, identity, row, media_type)

    def _one(self, live: Live, tower: Tower, identity: bytes, row: TowerRow, media_type: str) -> Response:
        known, vector = row.known, row.vector
        age = age_s(row.updated_ms, now_ms())
        step = row.clock if known else None
        headers = {"vary": "Accept", **stale_headers(self._service, live)}
        if age is not None:
            self._service.metrics.served_age.observe(age)
        if media_type == RAW:
            if age is not None:
                headers["X-Embedding-Step"] = str(step)
                headers["X-Embedding-Age-Ms"] = str(round(age * 1000))
            headers["X-Embedding-Events"] = str(row.count)
            headers["X-Embedding-Known"] = str(int(known))
            return Response(little_endian(vector), headers=headers, media_type=RAW)
        document = Embedding(
            id=identity.decode(),
            tower=tower,
            dim=len(vector),
            vector=msgspec.Raw(vector_json(vector)),
            step=step,
            updated_at=iso(row.updated_ms),
            age_s=age,
            events=row.count,
            known=known,
            source=row.source if known else "initial",
            as_of=as_of(live),
        )
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)

    async def _initial(self, live: Live, tower: Tower, keys: U64) -> F32:
        vectors = await self._service.offload.run(partial(rows.initial, live, tower, keys))
        return np.where(np.isfinite(vectors), vectors, np.float32(0.0))

    async def batch(self, request: Request) -> Response:
        """POST /v1/embeddings/{tower}:batch"""
        tower = rows.tower_of(request.path_params["tower"])
        asked = await self._body.read(request)
        cap = self._service.settings.max_batch
        if len(asked.ids) > cap:
            raise too_many("ids", len(asked.ids), cap)
        live = self._service.require_live()
        if tower == "item" and asked.format == "raw" and asked.on_missing == "null":
            return await self._raw_items(live, asked)
        if tower == "item" and len(asked.ids) <= _INLINE[asked.format] and asked.on_missing != "initial":
            found = rows.at_once(self._service, live, ids.keys_of_many(asked.ids, "ids"))
            if found is not None:
                return self._many(live, asked, found, found.vectors, found.found)
        return await self._service.offload.run(partial(self._answer, live, tower, asked))

    async def _raw_items(self, live: Live, asked: BatchRequest) -> Response:
        """Without an array of rows between the mirror and the answer."""
        keys = ids.keys_of_many(asked.ids, "ids")
        found = rows.gathered_at_once(self._service, live, keys) if len(keys) <= _INLINE["raw"] else None
        if found is None:
            found = await self._service.offload.run(partial(rows.gathered, self._service, live, keys))
        lowest = (found.clock, found.updated_ms) if found.found else None
        headers = {**_headers_of(len(keys), live, found.bitmap, lowest), **stale_headers(self._service, live)}
        return Response(little_endian(found.vectors), headers=headers, media_type=RAW)

    def _answer(self, live: Live, tower: Tower, asked: BatchRequest) -> Response:
        keys = ids.keys_of_many(asked.ids, "ids")
        found = rows.read(self._service, live, tower, keys)
        vectors, present = found.vectors, found.found
        if asked.on_missing == "initial":
            vectors = rows.with_initial(found, lambda missing: rows.initial(live, tower, keys[missing]))
            present = np.asarray(np.isfinite(vectors).all(axis=1))
        return self._many(live, asked, found, vectors, present)

    def _many(self, live: Live, asked: BatchRequest, found: TowerRows, vectors: F32, present: Bool) -> Response:
        """vectors (n, dim) of which `present` (n,) are answered; `found` has the rows' own columns."""
        if asked.on_missing == "error" and not present.all():
            missing = [str(asked.ids[i]) for i in np.flatnonzero(~present)[:10]]
            raise not_found(f"{int((~present).sum())} of {len(present)} ids are unknown", missing=missing)
        headers = stale_headers(self._service, live)
        if asked.format == "raw":
            headers |= raw_headers(found, live)
            whole = vectors if present.all() else np.where(present[:, None], vectors, np.float32(0.0))
            return Response(little_endian(whole), headers=headers, media_type=RAW)
        encoded = _base64_rows(vectors, present) if asked.format == "base64" else rows_json(vectors, present)
        there = found.found.tolist()
        document = Embeddings(
            dim=live.model.output_dim,
            dtype="float32-le",
            found=there,
            step=[step if known else None for step, known in zip(found.clock.tolist(), there, strict=True)],
            age_s=ages_s(found.updated_ms, found.found, now_ms()),
            events=np.where(found.found, found.count, 0).tolist(),
            vectors=msgspec.Raw(b"[" + encoded + b"]"),
            as_of=as_of(live),
        )
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)


def too_many(field: str, given: int, cap: int) -> Problem:
    """413: a list over its cap."""
    return Problem(
        413, "too-many", f"{field} has {given} ids, at most {cap} are taken: split the request", field=field, max=cap
    )


def little_endian(vectors: F32) -> bytes:
    """Raw float32 bytes, the same on every machine."""
    return vectors.astype("<f4", copy=False).tobytes()


def raw_headers(found: TowerRows, live: Live) -> dict[str, str]:
    """What a raw batch says of its rows."""
    there = found.found
    bitmap = np.packbits(there, bitorder="little")
    if not there.any():
        return _headers_of(len(there), live, bitmap, None)
    return _headers_of(len(there), live, bitmap, (int(found.clock[there].min()), int(found.updated_ms[there].min())))


def _headers_of(n: int, live: Live, bitmap: U8, lowest: tuple[int, int] | None) -> dict[str, str]:
    """Shape, which are found (bitmap, lowest bit first); of those the lowest clock and updated_ms, None without any."""
    headers = {
        "X-Embedding-Dim": str(live.model.output_dim),
        "X-Embedding-Count": str(n),
        "X-Embedding-Found": base64.b64encode(bitmap.tobytes()).decode(),
    }
    if lowest is not None:
        headers["X-Embedding-Step"] = str(lowest[0])
        headers["X-Embedding-Age-Ms"] = str(max(now_ms() - lowest[1], 0))
    return headers


def _base64_rows(vectors: F32, present: Bool) -> bytes:
    parts = [
        b'"' + base64.b64encode(little_endian(row)) + b'"' if there else b"null"
        for row, there in zip(vectors, present.tolist(), strict=True)
    ]
    return b",".join(parts)
