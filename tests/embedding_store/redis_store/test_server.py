"""What INFO must say before a server gets our rows."""

import pytest

from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.server import check, parse_info

GOOD = (
    b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nexecutable:/a:b\r\n\r\n"
    b"# Memory\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n"
)


def test_a_good_server_passes():
    info = parse_info(GOOD)
    assert (info["run_id"], info["executable"]) == ("abc", "/a:b")
    check(info, "here")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"redis_version": "6.2.14"}, StoreMisconfigured, r"here is Redis 6\.2\.14; Redis 7\.0"),
        ({"redis_version": "10.0.0"}, None, ""),
        ({"maxmemory_policy": "volatile-lru"}, StoreMisconfigured, "set it to noeviction"),
        ({"role": "slave"}, StoreUnavailable, "here is a replica"),
    ],
)
def test_others_are_refused_with_the_remedy(change, error, message):
    info = parse_info(GOOD) | change
    if error is None:
        check(info, "here")
        return
    with pytest.raises(error, match=message):
        check(info, "here")
