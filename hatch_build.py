"""Puts the compiled Redis module into the wheel, which is then one platform's; without a compiler a pure wheel is made.

TOWLINE_REQUIRE_MODULE=1 makes a wheel without the module an error: for those who publish one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("native", "redis_module")


class RedisModuleHook(BuildHookInterface[Any]):
    """Compiles before the wheel is filled, outside the source tree: a stale module must not be found there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError if the module is required and can't be built. Editable installs build it at first use."""
        if self.target_name != "wheel" or version == "editable":
            return
        compiler = self._compiler()
        self._folder = tempfile.mkdtemp(prefix="towline-module-")
        try:
            built = compiler.build_module(Path(self._folder) / compiler.FILE_NAME)
        except (compiler.CompilerMissing, compiler.BuildFailed) as error:
            shutil.rmtree(self._folder)
            if os.environ.get("TOWLINE_REQUIRE_MODULE", "0") not in ("", "0"):
                raise RuntimeError(
                    f"TOWLINE_REQUIRE_MODULE is set, and the Redis module can't be built: {error}"
                ) from error
            self.app.display_warning(
                f"a wheel without the Redis module, for any platform; stores work without it, slower: {error}"
            )
            return
        build_data["force_include"][str(built)] = (FOLDER / compiler.FILE_NAME).as_posix()
        build_data["pure_python"] = False
        # The module knows nothing of Python: any version of it, on this platform.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Removes the folder that was built in."""
        shutil.rmtree(getattr(self, "_folder", ""), ignore_errors=True)

    def _compiler(self) -> ModuleType:
        """native/redis_module/compiler.py by its path: what the package needs is not installed while it is built."""
        spec = importlib.util.spec_from_file_location("towline_compiler", Path(self.root) / FOLDER / "compiler.py")
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{FOLDER / 'compiler.py'} is missing from the sources")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
