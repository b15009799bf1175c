"""A real Redis Cluster of three masters, made by CLUSTER commands alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import RedisServer, free_port, running

DEADLINE_S = 30.0
BOUNDS = (0, 5461, 10923, 16384)


@dataclass(frozen=True)
class RedisCluster:
    """Its nodes, the slots split evenly among them."""

    nodes: tuple[RedisServer, ...]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def flush(self) -> None:
        """Empty all nodes."""
        for node in self.nodes:
            node.command("FLUSHALL")


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def running_cluster(name: str, folder: Path, *more: str, without: int | None = None) -> Iterator[RedisCluster]:
    """Three started masters of one kind of server that know each other, killed at the end.

    more: options of all, or of all but the node `without`.
    """
    with ExitStack() as stack:
        nodes = []
        for i in range(3):
            place = folder / str(i)
            place.mkdir()
            # a bus port of our own: the default, port + 10000, may be beyond 65535
            extra = () if i == without else more
            options = (*extra, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            nodes.append(stack.enter_context(running(name, place, *options, port=free_port())))
        for node, first, end in zip(nodes, BOUNDS[:-1], BOUNDS[1:], strict=True):
            node.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
        for node in nodes[1:]:
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", str(node.port), node.options[-1])
        until(lambda: all(b"cluster_state:ok" in node.command("CLUSTER", "INFO") for node in nodes))
        until(lambda: all(node.command("CLUSTER", "SLOTS").startswith(b"*3") for node in nodes))
        yield RedisCluster(tuple(nodes))
