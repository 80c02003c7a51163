"""A real headless Chromium, driven over its DevTools pipe: a page is loaded, and everything that it asks for or complains of is kept."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


@dataclass
class Browser:
    """One tab. `requests` are the addresses it asked for, `complaints` what it wrote on its console.

    `statuses`: of the answers to what it sent, by the request's method; the newest of each.
    """

    process: subprocess.Popen[bytes]
    to: int
    back: int
    session: str = ""
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    _methods: dict[str, str] = field(default_factory=dict)  # of requests, by their number
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _buffer: bytes = b""
    _loaded: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return answer["result"]  # type: ignore[no-any-return]

    def open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def load(self, path: Path, width: int = 1280, scheme: str = "light") -> None:
        """Open a file as a window of this width and this preference of colours shows it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.navigate(path.absolute().as_uri())

    def navigate(self, url: str) -> None:
        """Open an address; returns at the page's load event."""
        loaded = self._loaded
        self.call("Page.navigate", url=url)
        while self._loaded == loaded:
            self._next("the page's load event")

    def wait_for(self, expression: str, within: float = 30.0) -> Any:
        """The value of a JavaScript expression, as soon as it is one that counts as true; a page that builds itself needs that."""
        deadline = time.monotonic() + within
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"waited {within:.0f} s for {expression}; the page: {self.text()[-3000:]}"
            time.sleep(0.1)
        return value

    def status_of(self, method: str, within: float = 30.0) -> int:
        """The status of the answer to a request with this method, as soon as there is one; then it is forgotten."""
        deadline = time.monotonic() + within
        while method not in self.statuses:
            assert time.monotonic() < deadline, f"waited {within:.0f} s for the answer to {method}"
            self.value("0")
            time.sleep(0.05)
        return self.statuses.pop(method)

    def text(self) -> str:
        """What the page shows."""
        return str(self.value("document.body.innerText"))

    def type(self, text: str) -> None:
        """Type into the element that has the focus, as a keyboard does."""
        self.call("Input.insertText", text=text)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _next(self, waiting_for: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, f"waited 60 s for {waiting_for}"
            if select.select([self.back], [], [], 1.0)[0]:
                data = os.read(self.back, 1 << 20)
                assert data, f"the browser is gone, waiting for {waiting_for}"
                self._buffer += data
        first, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message  # type: ignore[no-any-return]

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            self._methods[params["requestId"]] = params["request"]["method"]
        elif method == "Network.responseReceived":
            self.statuses[self._methods.get(params["requestId"], "")] = params["response"]["status"]
        elif method == "Page.loadEventFired":
            self._loaded += 1
        elif method in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}:
            self.complaints.append(json.dumps(params)[:500])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Started for one test; Debian's package is `chromium`."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    from_us, to_us = os.pipe(), os.pipe()
    # Chromium reads its commands from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{from_us[0]} 4>&{to_us[1]} 2>/dev/null'
    command = ["bash", "-c", script, "chromium", binary, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(from_us[0], to_us[1]),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(profile)},  # it is killed, and its own folders would stay in /tmp
    )
    os.close(from_us[0])
    os.close(to_us[1])
    try:
        found = Browser(process, from_us[1], to_us[0])
        found.open_tab()
        yield found
    finally:
        os.close(from_us[1])
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        os.close(to_us[0])
