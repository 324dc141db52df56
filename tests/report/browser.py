"""A real Chromium without a window, spoken to over a pipe by the DevTools protocol: no driver, no client library, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The protocol is spoken on the file descriptors 3 and 4 of the browser.
SHIM = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, place in zip(high, (3, 4)):
    os.dup2(number, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 240  # seconds: a busy machine is no failure


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page."""

    def __init__(self, binary: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SHIM, str(to_read), str(to_write), binary, *options, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self.events: list[dict] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    # -- the protocol -------------------------------------------------------------------------------------------------

    _session: str | None = None

    def call(self, method: str, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def _receive(self) -> dict:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium has said nothing for {PATIENCE} seconds")
            part = os.read(self._read, 2**20)
            if not part:
                raise RuntimeError(f"Chromium has ended with {self._process.wait()}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    # -- what a test asks ---------------------------------------------------------------------------------------------

    def open(self, page: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression: str):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The size of the screen, and the theme that the system asks for."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def move(self, x: float, y: float) -> None:
        """The pointer to a place."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what is seen."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings on the console, uncaught exceptions, and violations of the page's own policy."""
        self.ask("1")  # what was said until now has arrived
        found = []
        for event in self.events:
            body = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(body["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and body["entry"]["level"] in ("error", "warning"):
                found.append(body["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and body["type"] in ("error", "warning", "assert"):
                found.append(str(body["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """What the page has asked for, but for itself and what it carries."""
        self.ask("1")
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls[1:] if not url.startswith(("data:", "blob:"))]

    def close(self) -> None:
        with suppress(Exception):
            self.call("Browser.close")
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
