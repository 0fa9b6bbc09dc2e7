"""A real Chromium without a window, asked over DevTools on two pipes: no port, no network, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

#: Debian's packages, and what others call it.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
SECONDS = 60.0


def find() -> str | None:
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. What the page says and asks for is collected."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, to_write = os.pipe()  # the browser reads its orders from 3 and answers on 4
        from_read, from_write = os.pipe()

        def handles() -> None:
            # both numbers may be taken by the pipes themselves: move them out of the way first
            orders, answers = os.dup2(to_read, 60), os.dup2(from_write, 61)
            os.dup2(orders, 3)
            os.dup2(answers, 4)

        self._process = subprocess.Popen(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync",
                "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={profile}",
                "--remote-debugging-pipe", "about:blank",
            ],
            pass_fds=(3, 4), preexec_fn=handles, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._out, self._in, self._rest = to_write, from_read, b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        for handle in (self._out, self._in):
            os.close(handle)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One order and its answer. Raises RuntimeError when the browser refuses or is silent."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            message = self._message(deadline, method)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
            self.events.append(message)

    def show(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Opens a file at a width in CSS pixels and waits until it is loaded."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + SECONDS
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message(deadline, "loading"))

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; the page itself runs none."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, target: Path) -> None:
        """The whole page as a picture."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        target.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the page was opened."""
        out = []
        for event in self.events:
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in (
                "error",
                "warning",
            ):
                out.append(str(event["params"]["entry"]["text"]))
            if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                out.append(json.dumps(event["params"])[:300])
        return out

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        asked = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [str(e["params"]["request"]["url"]) for e in asked]

    def _message(self, deadline: float, during: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError(f"{during}: the browser gives no answer")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))
