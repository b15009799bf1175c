import ctypes
import os

import pytest

from tests.native.redis_module.loaded import load
from tests.native.redis_module.shards import typed


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The core, built by the system compiler. Without one this fails, and says what to install.

    TOWLINE_CORE_FLAGS: further flags of the compiler, for running the same tests under sanitizers.
    """
    flags = os.environ.get("TOWLINE_CORE_FLAGS", "").split()
    return typed(load(tmp_path_factory.mktemp("redis_module"), *flags))
