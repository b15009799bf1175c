"""A headless Chromium, driven by the DevTools protocol over its own socket: no driver, no package."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_START_S = 30
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str:
    """The browser. Raises AssertionError: a test that needs it must not pass without."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert found, f"none of {', '.join(_NAMES)} is installed: apt-get install chromium"
    return found


class Tab:
    """One page, and what it logged."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.problems: list[str] = []
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        told = message["params"]
        match message["method"]:
            case "Runtime.exceptionThrown":
                self.problems.append(str(told["exceptionDetails"].get("exception", told)))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.problems.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(told["entry"]))

    def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, script: str, what: str, deadline_s: float = 20) -> Any:
        """Wait for an expression to be true."""
        end = time.monotonic() + deadline_s
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not within {deadline_s} s: {what}; {self.problems}"
            self.run("new Promise(done => setTimeout(done, 50))")
        return value

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name: str) -> None:
        """dark or light."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """A key, down and up."""
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def tab(folder: Path, url: str) -> Iterator[Tab]:
    """A browser with one tab on a URL; ended afterwards."""
    profile = folder / "profile"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-background-networking"]
    with (folder / "chromium.log").open("wb") as log:
        browser = subprocess.Popen([program(), *options, "about:blank"], stdout=log, stderr=log)
    try:
        port = _port(profile, browser)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            opened = Tab(socket)
            opened.call("Page.navigate", url=url)
            opened.until(
                f"location.href == {json.dumps(url)} && document.readyState == 'complete'", "the page is there"
            )
            yield opened
    finally:
        browser.terminate()
        browser.wait(10)


def _port(profile: Path, browser: subprocess.Popen[bytes]) -> int:
    """Written down by the browser once it listens."""
    end = time.monotonic() + _START_S
    file = profile / "DevToolsActivePort"
    while True:
        assert browser.poll() is None, (profile.parent / "chromium.log").read_text()
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        assert time.monotonic() < end, "the browser does not listen"
        time.sleep(0.02)
