"""A headless Chromium for tests: what a page shows, asks for and complains about.

The browser is that of an npm package which carries one, fetched once for a machine. It is spoken to
over a pipe, in the DevTools protocol: no driver, no port.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from object_servers import Program, ServerUnavailableError, fetch


@dataclass(frozen=True)
class _Browser(Program):
    @property
    def command(self) -> list[str]:
        return ["sh", str(Path(__file__).with_name("fetch_chromium.sh")), self.version]

    @property
    def executable(self) -> Path:
        return self.folder / "chromium"


CHROMIUM = _Browser(name="chromium", version="153.0.0", scheme="file", source="", arguments=())
_ARGUMENTS = (
    "--headless=shell",
    "--no-sandbox",
    "--no-zygote",
    "--single-process",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One page of a running browser."""

    def __init__(self, browser: "subprocess.Popen[bytes]") -> None:
        self._browser, self._number, self._session = browser, 0, ""
        self._left = b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._browser.stdin.write(json.dumps(message).encode() + b"\0")
        self._browser.stdin.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, *, width: int = 1200, dark: bool = False) -> None:
        """Show a file once it has loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the console said, and the exceptions, since the page was opened."""
        said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event["method"] in said]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened."""
        asked = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = self._browser.stdout.read1(1 << 16)
            assert piece, "the browser has ended"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)


@contextmanager
def running_page(folder: Path) -> Iterator[Page]:
    """Run a browser, whose profile and log lie in a folder, and yield a page of it.

    Raises:
        ServerUnavailableError: There is none for this machine, or npm is missing.
    """
    if platform.machine() != "x86_64":
        raise ServerUnavailableError(f"the package of Chromium has none for {platform.machine()}")
    executable = fetch(CHROMIUM)
    command = [str(executable), *_ARGUMENTS, f"--user-data-dir={folder / 'profile'}"]
    # The package brings libraries and a font: a bare machine has neither.
    brought = {
        "LD_LIBRARY_PATH": str(executable.parent / "lib"),
        "FONTCONFIG_FILE": str(executable.parent / "fonts.conf"),
        "HOME": str(folder),
    }
    # The browser reads file 3 and writes file 4.
    wrapped = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >&2', "sh", *command]
    with (folder / "log").open("wb") as log:
        browser = subprocess.Popen(
            wrapped,
            cwd=folder,  # the cache of fonts is relative to it
            env={**os.environ, **brought},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        yield Page(browser)
    finally:
        browser.kill()
        browser.wait()
        browser.stdin.close()
        browser.stdout.close()
