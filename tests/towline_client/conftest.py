"""A real HTTP server over the small world of the serving tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from serving.server import Server, listen
from serving.service import Service
from tests.serving.conftest import World, make_world

__all__ = ["make_world"]


@contextmanager
def listening(service: Service) -> Iterator[str]:
    """The service on a free port of loopback, in a thread of this process; its URL."""
    listener = listen("127.0.0.1", 0)
    server = Server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def url_of() -> Iterator[Callable[[World], str]]:
    """Serves a world until the test ends."""
    with ExitStack() as stack:
        yield lambda world: stack.enter_context(listening(world.service))
