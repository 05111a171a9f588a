"""A provider on loopback that answers chat completions as a test tells it to: well, late, cut off, or not at all."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "model-1"


@dataclass
class Reply:
    """One HTTP answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0
    announced: int | None = None
    """A Content-Length that is not kept: the connection is closed before it is reached."""


def completion(
    content: str | None = None,
    *,
    verdict: str = "pass",
    explanation: str = "as the record shows",
    finish: str = "stop",
    model: str | None = MODEL,
    usage: Any = "usual",
    **message: Any,
) -> Reply:
    """A chat completion; by default one that gives a verdict."""
    said = content if content is not None else json.dumps({"explanation": explanation, "verdict": verdict})
    document: dict[str, Any] = {
        "id": "one",
        "object": "chat.completion",
        "created": 0,
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": said, **message}}
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050} if usage == "usual" else usage,
    }
    if model is not None:
        document["model"] = model
    return Reply(body=json.dumps(document).encode(), headers={"content-type": "application/json"})


def error(status: int, code: str | None = None, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": f"status {status}", "type": "error", "code": code}}).encode()
    return Reply(
        status, body, {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    )


Behaviour = Callable[[int, dict[str, Any]], Reply]
"""From the number of the request, from 0, and its body, to the answer."""


class Provider:
    """The server. ``behave`` may be changed while it runs."""

    def __init__(self) -> None:
        self.behave: Behaviour = lambda _number, _body: completion()
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.authorizations: list[str | None] = []
        self.together = 0
        self.most_together = 0
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with provider._lock:
                    number = len(provider.requests)
                    provider.requests.append(body)
                    provider.times.append(time.monotonic())
                    provider.authorizations.append(self.headers.get("authorization"))
                    provider.together += 1
                    provider.most_together = max(provider.most_together, provider.together)
                try:
                    reply = provider.behave(number, body)
                    time.sleep(reply.wait)
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(reply.announced or len(reply.body)))
                    self.end_headers()
                    self.wfile.write(reply.body)
                    self.close_connection = reply.announced is not None
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with provider._lock:
                        provider.together -= 1

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def provider() -> Iterator[Provider]:
    one = Provider()
    try:
        yield one
    finally:
        one.close()
