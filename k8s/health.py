"""Answers for the kubelet and for Prometheus: whether a process is well, and its metrics."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@contextmanager
def served(
    port: int,
    registry: CollectorRegistry,
    questions: Mapping[str, Callable[[], bool]],
    *,
    host: str = "0.0.0.0",  # noqa: S104
) -> Iterator[int]:
    """Serves ``/metrics`` and these questions, by path, in a thread: 200 for yes, 503 for no. Gives the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif (question := questions.get(self.path)) is not None:
                well = question()
                self._answer(200 if well else 503, "text/plain", b"yes\n" if well else b"no\n")
            else:
                self._answer(404, "text/plain", b"not found\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A probe every few seconds is not worth a line."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
