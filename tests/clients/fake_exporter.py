"""An exporter of Kafka's gauges on this machine, which answers as a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

Answer = Callable[[BaseHTTPRequestHandler], None]
BODY = b"zkmigrationstate 1\nzkwritebehindlag 0\n"


class Exporter(ThreadingHTTPServer):
    """Answers each path as the test has set it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {}
        self.done = Event()

    @property
    def address(self) -> str:
        return f"http://{{host}}:{self.server_port}/{{id}}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Exporter)
        self.server.answers.get(self.path, answer(BODY))(self)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def answer(body: bytes, code: int = 200, **headers: str) -> Answer:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


@contextmanager
def serving() -> Iterator[Exporter]:
    """An exporter that serves; handlers that wait for its `done` end with it."""
    with Exporter() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.done.set()
            server.shutdown()
            thread.join()
