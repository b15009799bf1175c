import ctypes

import pytest

from tests.native.redis_module.loaded import load


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The table structure, built by the system compiler. Without one this fails, and says what to install."""
    return load(tmp_path_factory.mktemp("redis_module"))
