"""The application: routes and the layer around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.dashboard.routes import DashboardRoutes
from serving.docs import DocsRoutes
from serving.embeddings import EmbeddingRoutes
from serving.events import EventRoutes
from serving.explain import ExplainRoutes
from serving.health import HealthRoutes
from serving.middleware import UNMATCHED, RequestLayer
from serving.model_card import ModelRoutes
from serving.openapi import document
from serving.recommend import RecommendRoutes
from serving.score import ScoreRoutes
from serving.service import Service
from serving.similar import SimilarRoutes


class _IdConvertor(Convertor[str]):
    """The rest of the path, whatever it holds: Starlette's `path` stops at a line feed, which an id may have."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", _IdConvertor())


class Endpoint:
    """A handler as an ASGI application. Starlette's own wrapping of functions would look for handlers of exceptions,
    of which there are none: the request layer answers them all."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


def _route(path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> Route:
    return Route(path, Endpoint(handler), methods=[method])


def routes(service: Service) -> list[Route]:
    """Every route. Handlers decode and encode by themselves: FastAPI's own request handling would triple the cost of
    the hot ones."""
    embeddings, recommend, similar = EmbeddingRoutes(service), RecommendRoutes(service), SimilarRoutes(service)
    score, explain, events = ScoreRoutes(service), ExplainRoutes(service), EventRoutes(service)
    model, health, docs = ModelRoutes(service), HealthRoutes(service), DocsRoutes(service)
    dashboard = DashboardRoutes(service)
    return [
        _route("/v1/embeddings/{tower}:batch", embeddings.batch, "POST"),
        _route("/v1/embeddings/{tower}/{id:id}", embeddings.lookup, "GET"),
        _route("/v1/recommend", recommend.recommend, "POST"),
        _route("/v1/recommend:batch", recommend.batch, "POST"),
        _route("/v1/similar", similar.similar, "POST"),
        _route("/v1/score", score.score, "POST"),
        _route("/v1/explain", explain.explain, "GET"),
        _route("/v1/events", events.accept, "POST"),
        _route("/v1/model", model.model, "GET"),
        _route("/livez", health.live, "GET"),
        _route("/readyz", health.ready, "GET"),
        _route("/metrics", health.metrics, "GET"),
        _route("/openapi.json", docs.openapi, "GET"),
        _route("/dashboard", dashboard.show, "GET"),
        _route("/dashboard/events", dashboard.events, "GET"),
        _route("/docs", docs.page, "GET"),
    ]


class Application(FastAPI):
    """FastAPI around one layer: what it and Starlette put between them and the router, for exceptions, exit stacks and
    limits of bodies, would cost some 17 µs a request, and there would be nothing for it to do."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            title="Towline",
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            # its look for OpenTelemetry costs 15 µs a request; releases before it ignore the argument
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        table = routes(service)
        service.metrics.know([*(route.path_format for route in table), UNMATCHED])
        labels: dict[object, str] = {route.endpoint: route.path_format for route in table}
        self._layer = RequestLayer(Router(table, redirect_slashes=False), service, labels)
        self.openapi = document  # type: ignore[method-assign]

    def build_middleware_stack(self) -> ASGIApp:
        """What every request goes through."""
        return self._layer


def create_app(service: Service) -> Application:
    """The ASGI application over `service`, whose `live` model the refreshing thread sets."""
    return Application(service)
