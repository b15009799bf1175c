"""The application: routes and the layer around them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.dashboard.routes import DashboardRoutes
from serving.docs import DocsRoutes
from serving.embeddings import EmbeddingRoutes
from serving.events import EventRoutes
from serving.explain import ExplainRoutes
from serving.health import HealthRoutes
from serving.middleware import RequestLayer
from serving.model_card import ModelRoutes
from serving.openapi import document
from serving.problems import of_status
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


def routes(service: Service) -> list[Route]:
    """Every route. Plain Starlette routes inside the FastAPI application: handlers decode and encode by
    themselves, and FastAPI's own request handling would triple the cost of the hot ones."""
    embeddings, recommend, similar = EmbeddingRoutes(service), RecommendRoutes(service), SimilarRoutes(service)
    score, explain, events = ScoreRoutes(service), ExplainRoutes(service), EventRoutes(service)
    model, health, docs = ModelRoutes(service), HealthRoutes(service), DocsRoutes(service)
    dashboard = DashboardRoutes(service)
    return [
        Route("/v1/embeddings/{tower}:batch", embeddings.batch, methods=["POST"]),
        Route("/v1/embeddings/{tower}/{id:id}", embeddings.lookup, methods=["GET"]),
        Route("/v1/recommend", recommend.recommend, methods=["POST"]),
        Route("/v1/recommend:batch", recommend.batch, methods=["POST"]),
        Route("/v1/similar", similar.similar, methods=["POST"]),
        Route("/v1/score", score.score, methods=["POST"]),
        Route("/v1/explain", explain.explain, methods=["GET"]),
        Route("/v1/events", events.accept, methods=["POST"]),
        Route("/v1/model", model.model, methods=["GET"]),
        Route("/livez", health.live, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/openapi.json", docs.openapi, methods=["GET"]),
        Route("/dashboard", dashboard.show, methods=["GET"]),
        Route("/dashboard/events", dashboard.events, methods=["GET"]),
        Route("/docs", docs.page, methods=["GET"]),
    ]


def create_app(service: Service) -> FastAPI:
    """The ASGI application over `service`, whose `live` model the refreshing thread sets."""
    app = FastAPI(
        title="Towline",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # its look for OpenTelemetry costs 15 µs a request; releases before it ignore the argument
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    table = routes(service)
    app.router.routes.extend(table)
    app.add_exception_handler(HTTPException, _to_problem)
    app.add_middleware(RequestLayer, service=service, labels={route.endpoint: route.path_format for route in table})
    app.openapi = document  # type: ignore[method-assign]
    return app


async def _to_problem(request: Request, error: Exception) -> Response:
    """The router's own 404 and 405, on their way to the request layer, which knows the request id."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        raise of_status(404, "no such path: /docs lists what there is") from error
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        raise of_status(405, f"{request.method[:20]} is not allowed here: use {allowed}", error.headers) from error
    raise of_status(error.status_code, str(error.detail), error.headers) from error
