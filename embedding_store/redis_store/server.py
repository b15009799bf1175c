"""What a server must be before it gets our rows; checked on every new connection, because fail-over changes servers."""

from __future__ import annotations

from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.resp import pack

OLDEST = (7, 0)


def admit(wire: Wire) -> None:
    """Check version, policy and role, and note the server's run id on the wire. One round trip.

    Raises StoreMisconfigured for a server that would break guarantees, StoreUnavailable for a replica.
    """
    wire.send([pack("INFO", "server") + pack("INFO", "memory") + pack("INFO", "replication")])
    info: dict[str, str] = {}
    for reply in wire.checked([wire.read() for _ in range(3)]):
        info |= parse_info(reply)
    check(info, str(wire.address))
    wire.run_id = info["run_id"]


def check(info: dict[str, str], address: str) -> None:
    """Raises as `admit` does. The policy is read from INFO, which managed servers permit where they forbid CONFIG."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreMisconfigured(f"{address} is Redis {version}; Redis 7.0, Valkey 7.2 or newer is needed")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreMisconfigured(
            f"{address} has maxmemory-policy {policy} and would evict whole shards; set it to noeviction"
        )
    if info.get("role", "master") != "master":
        raise StoreUnavailable(f"{address} is a replica; rows are read and written at the master")


def parse_info(reply: bytes) -> dict[str, str]:
    """Fields of an INFO reply."""
    lines = (line for line in reply.decode().splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in (line.partition(":") for line in lines)}
