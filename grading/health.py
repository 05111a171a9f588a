"""Whether a process that runs for ever is well, for whoever watches over it: ``/healthz`` and ``/readyz`` on a port."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

SILENT_SECONDS = 900.0
"""A process that gave no sign for so long is stuck: a judge's call, the longest thing it does, takes less."""


class Health:
    """What one process tells of itself. It lives while it gives signs, and is ready while it can do its work.

    Args:
        silent_seconds: how long it may give no sign before ``/healthz`` answers 503.
        clock: seconds, ever growing.
    """

    def __init__(self, *, silent_seconds: float = SILENT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._signed = clock()
        self._trouble: str | None = "it has only just begun"

    def sign(self) -> None:
        """Gives a sign of life."""
        self._signed = self._clock()

    @property
    def is_ready(self) -> bool:
        return self._trouble is None

    def ready(self) -> None:
        """Says that everything it needs is there."""
        self._trouble = None
        self.sign()

    def troubled(self, why: str) -> None:
        """Says what is missing; it lives on."""
        self._trouble = why
        self.sign()

    def asked(self, path: str) -> tuple[int, str]:
        """The status and the text for a path."""
        if path == "/healthz":
            silent = self._clock() - self._signed
            return (503, f"no sign for {silent:.0f} s") if silent > self._silent_seconds else (200, "alive")
        if path == "/readyz":
            trouble = self._trouble
            return (200, "ready") if trouble is None else (503, trouble)
        return 404, "ask /healthz or /readyz"


class HealthServer:
    """Serves a :class:`Health` on every address of a port, from a thread, until it is left.

    Raises:
        OSError: the port is taken or may not be used.
    """

    def __init__(self, health: Health, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, text = health.asked(self.path)
                content = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """A probe every few seconds is nothing to remember."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
