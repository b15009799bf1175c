"""The OpenAPI document and its page."""

from __future__ import annotations

import re
from typing import Any

from serving.app import routes
from serving.openapi import document
from tests.serving.conftest import World


def _refs(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(_refs, node.values()))
    return set().union(*map(_refs, node)) if isinstance(node, list) else set()


def test_every_route_is_documented_and_nothing_else(world: World) -> None:
    served = {
        (route.path_format, method)
        for route in routes(world.service)
        for method in route.methods or ()
        if method != "HEAD"
    }
    documented = {(path, verb.upper()) for path, verbs in document()["paths"].items() for verb in verbs}
    assert served == documented


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    schemas = document()["components"]["schemas"]
    names = {ref.removeprefix("#/components/schemas/") for ref in _refs(document())}
    assert names == set(schemas)


def test_every_operation_has_success_and_problems() -> None:
    for verbs in document()["paths"].values():
        for operation in verbs.values():
            codes = operation["responses"]
            success = {"200", "202"} & set(codes)
            assert len(success) == 1
            problems = [codes[code] for code in codes if code not in success]
            assert problems
            assert all(list(answer["content"]) == ["application/problem+json"] for answer in problems)


def _check(value: Any, schema: dict[str, Any], where: str = "$") -> None:
    """The parts of JSON Schema that the document uses."""
    schemas = document()["components"]["schemas"]
    if "$ref" in schema:
        _check(value, schemas[schema["$ref"].rsplit("/", 1)[1]], where)
    elif "anyOf" in schema or "oneOf" in schema:
        failures = []
        for option in schema.get("anyOf") or schema["oneOf"]:
            try:
                _check(value, option, where)
                break
            except AssertionError as failure:
                failures.append(failure)
        else:
            raise AssertionError(f"{where}: {failures}")
    elif "enum" in schema:
        assert value in schema["enum"], where
    elif schema.get("type") == "object" and "properties" in schema:
        assert isinstance(value, dict), where
        assert set(schema.get("required", ())) <= set(value), where
        assert set(value) <= set(schema["properties"]), f"{where}: {set(value) - set(schema['properties'])}"
        for name, item in value.items():
            _check(item, schema["properties"][name], f"{where}.{name}")
    elif schema.get("type") == "array":
        assert isinstance(value, list), where
        for item in value:
            _check(item, schema["items"], where + "[]")
    else:
        kinds = {
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
            "null": type(None),
            "object": dict,
        }
        if "type" in schema:
            assert isinstance(value, kinds[schema["type"]]), f"{where}: {value!r} is no {schema['type']}"


def test_answers_are_as_documented(world: World) -> None:
    answers = [
        ("/v1/embeddings/{tower}/{id}", "get", world.get("/v1/embeddings/item/i1")),
        ("/v1/embeddings/{tower}/{id}", "get", world.get("/v1/embeddings/item/x?on_missing=initial")),
        ("/v1/embeddings/{tower}:batch", "post", world.post("/v1/embeddings/item:batch", {"ids": ["i1", "x"]})),
        (
            "/v1/embeddings/{tower}:batch",
            "post",
            world.post("/v1/embeddings/item:batch", {"ids": ["i1"], "format": "base64"}),
        ),
        ("/v1/recommend", "post", world.post("/v1/recommend", {"user_id": "u1"})),
        ("/v1/recommend", "post", world.post("/v1/recommend", {"user_id": "new"})),
        ("/v1/recommend:batch", "post", world.post("/v1/recommend:batch", {"user_ids": ["u1", "new"]})),
        ("/v1/similar", "post", world.post("/v1/similar", {"item_ids": ["i1", "nope"]})),
        ("/v1/score", "post", world.post("/v1/score", {"user_id": "u1", "item_ids": ["i1", "i9", "nope"]})),
        ("/v1/explain", "get", world.get("/v1/explain?user_id=u1&item_id=i1")),
        ("/v1/explain", "get", world.get("/v1/explain?user_id=new&item_id=i9")),
        ("/v1/model", "get", world.get("/v1/model")),
        ("/readyz", "get", world.get("/readyz")),
    ]
    for path, verb, answer in answers:
        content = document()["paths"][path][verb]["responses"][str(answer.status_code)]["content"]
        _check(answer.json(), content["application/json"]["schema"], path)
    problem = world.get("/v1/embeddings/item/i1?on_missing=x").json()
    _check(problem, {"$ref": "#/components/schemas/ProblemDocument"})


def test_the_page_needs_nothing_from_elsewhere(world: World) -> None:
    answer = world.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", answer.text), "an address of another host"
    assert not re.findall(r"(?:src|href)=\"(?!openapi\.json)", answer.text)
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert "innerHTML" not in answer.text


def test_the_document_is_served_as_is(world: World) -> None:
    assert world.get("/openapi.json").json() == document()
    assert world.app.openapi() == document()
