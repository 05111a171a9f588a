"""A pod without a cluster: the recorder's process as it runs in one, and a real HTTP intake that can be made to
fail."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from recorded_trial import assignment

from grading.intake import validate
from simulator.canonical import canonical_hash
from simulator.journal import line
from simulator.pod_protocol import (
    Assigned,
    AssignmentRequest,
    Following,
    JournalLines,
    LedgerAnswer,
    Refusal,
    TurnAnswer,
    Unusable,
)

TOKEN = "token-1"
LAUNCH = "0123456789abcdef0123456789abcdef"
ROOT = Path(__file__).resolve().parents[2]

Fault = Callable[["_Handler"], bool]
"""Answers a request in the intake's place; False leaves it to the intake."""


class Intake:
    """Hands out its assignments one after the other and keeps what comes, every request checked by the protocol's
    models. ``faults`` are asked first, by path, one for each request, until they run out."""

    def __init__(self, assignments: list[dict[str, Any]]) -> None:
        self.assignments = assignments
        self.tokens = {TOKEN}
        self.asked: list[AssignmentRequest] = []
        self.journals: dict[int, list[bytes]] = {}
        self.ledgers: dict[int, bytes] = {}
        self.unusable: list[Unusable] = []
        self.requests: list[tuple[float, str]] = []
        self.connections = 0
        self.faults: dict[str, list[Fault | None]] = {}
        self.outcome = "accepted"
        self.answers_next = False
        """Whether a ledger is answered with the next trial where the pod asks for it, as the real one does."""
        self.tells_after = True
        """Whether an assignment says which one comes after it."""
        self.asked_next: list[int] = []
        """The attempts with whose ledgers a pod asked for the next trial."""
        self.turns: list[int] = []
        """The attempts whose ledgers came with the beginning of the next trial."""
        self.fenced = False
        self.more: Callable[[int], bool] = lambda number: number < len(self.assignments)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.intake = self
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines(self, attempt: int = 1) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.journals.get(attempt, [])]

    def tools(self, attempt: int = 1) -> list[str]:
        return [line["call"]["tool"] for line in self.lines(attempt) if "call" in line]

    def content(self, attempt: int = 1) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(self.ledgers[attempt])["content"]
        return content

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    intake: Intake
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A pod that was killed in the middle of a request is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.server.intake.connections += 1

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        intake, parts = self.server.intake, urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        intake.requests.append((time.monotonic(), parts.path))
        waiting = intake.faults.get(parts.path) or [None]
        fault = waiting.pop(0)
        if fault is not None and fault(self):
            return
        if self.headers["Authorization"] not in {f"Bearer {token}" for token in intake.tokens}:
            self.answer(401, Refusal(reason="no token that is known"))
            return
        {
            "/v1/assignment": self._assignment,
            "/v1/journal": self._journal,
            "/v1/ledger": lambda: self._ledger(int(parse_qs(parts.query)["attempt"][0])),
            "/v1/turn": lambda: self._turn(int(parse_qs(parts.query)["attempt"][0])),
            "/v1/unusable": self._unusable,
        }[parts.path]()

    def _assignment(self) -> None:
        intake = self.server.intake
        intake.asked.append(AssignmentRequest.model_validate_json(self.body))
        given = self._next()
        self.answer(204 if given is None else 200, given)

    def _next(self) -> Assigned | None:
        intake = self.server.intake
        number = len(intake.ledgers) + len(intake.unusable)
        if number == len(intake.assignments):
            return None
        given = intake.assignments[number]
        after = intake.assignments[number + 1 : number + 2]
        return Assigned.model_validate_json(
            orjson.dumps(
                {
                    "version": 1,
                    "attempt": number + 1,
                    "number": 1,
                    "trial": f"trial-{number + 1}",
                    "hash": canonical_hash(given),
                    "assignment": given,
                    "more": intake.more(number + 1),
                    "after": canonical_hash(after[0]) if after and intake.tells_after else None,
                }
            )
        )

    def _journal(self) -> None:
        intake, told = self.server.intake, JournalLines.model_validate_json(self.body)
        if intake.fenced:
            self.answer(410, Refusal(reason="another attempt has begun"))
            return
        kept = intake.journals.setdefault(told.attempt, [])
        assert told.first <= len(kept), "lines are missing"
        kept[told.first :] = told.lines()
        self.answer(204)

    def _ledger(self, attempt: int) -> None:
        intake = self.server.intake
        validate(self.body, intake.assignments[attempt - 1], f"trial-{attempt}", 1)
        intake.ledgers[attempt] = self.body
        asked = parse_qs(urlsplit(self.path).query).get("next") == ["1"]
        if asked:
            intake.asked_next.append(attempt)
        going_on = asked and intake.answers_next and intake.outcome in ("accepted", "repeated")
        self.answer(200, LedgerAnswer(outcome=intake.outcome, next=self._next() if going_on else None))

    def _turn(self, attempt: int) -> None:
        """As the ledger with ``next=1``; what was begun is the next trial's journal where it is of its assignment."""
        intake = self.server.intake
        document, _, told = self.body.partition(b"\n")
        following = Following.model_validate_json(told)
        validate(document, intake.assignments[attempt - 1], f"trial-{attempt}", 1)
        intake.ledgers[attempt] = document
        intake.turns.append(attempt)
        going_on = intake.answers_next and intake.outcome in ("accepted", "repeated")
        given = self._next() if going_on else None
        begun = given is not None and given.hash == following.assignment
        if given is not None and begun:
            lines = [line(given.attempt, members) for members in following.members()]
            kept = intake.journals.setdefault(given.attempt, [])
            assert lines[: len(kept)] == kept, "other lines than before"
            kept[:] = lines
        self.answer(200, TurnAnswer(outcome=intake.outcome, next=given, begun=begun))

    def _unusable(self) -> None:
        self.server.intake.unusable.append(Unusable.model_validate_json(self.body))
        self.answer(204)

    def answer(self, status: int, model: Any = None, **headers: str) -> None:
        body = model.model_dump_json().encode() if model is not None else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at what was asked."""


def status(code: int, **headers: str) -> Fault:
    def fault(handler: _Handler) -> bool:
        handler.answer(code, Refusal(reason=f"made to answer {code}"), **headers)
        return True

    return fault


def half_an_answer(handler: _Handler) -> bool:
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"version": 1, ')
    handler.close_connection = True
    return True


def no_answer(handler: _Handler) -> bool:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return True


def silent(seconds: float) -> Fault:
    def fault(handler: _Handler) -> bool:
        time.sleep(seconds)
        handler.close_connection = True
        return True

    return fault


def dripping(handler: _Handler) -> bool:
    """Never lets a socket's time-out pass, and never comes to an end."""
    with suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.1)
    handler.close_connection = True
    return True


def after(do: Callable[[], Any]) -> Fault:
    """Does something when the request has come, then leaves it to the intake."""

    def fault(_: _Handler) -> bool:
        do()
        return False

    return fault


class Pod:
    """The recorder's process."""

    def __init__(
        self,
        folder: Path,
        intake: Intake | str,
        environ: dict[str, str | None] | None = None,
        command: list[str] | None = None,
    ) -> None:
        token = folder / "token"
        if not token.exists():
            token.write_text(TOKEN)
        everything: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "CELLWISE_INTAKE": intake if isinstance(intake, str) else intake.url,
            "CELLWISE_LAUNCH": LAUNCH,
            "CELLWISE_POD_NAME": "cw-0123456789-1-g1-0-abcde",
            "CELLWISE_POD_UID": "8f7c9c3e-1111-2222-3333-444444444444",
            "CELLWISE_NODE": "node-1",
            "CELLWISE_TOKEN_FILE": str(token),
            "CELLWISE_RETRY_SECONDS": "20",
            "CELLWISE_REQUEST_SECONDS": "10",
            "JOB_COMPLETION_INDEX": "0",
            **(environ or {}),
        }
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "simulator.pod"],
            env={name: value for name, value in everything.items() if value is not None},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[dict[str, Any]] = []

    def ended(self, seconds: float = 60.0) -> int:
        """The exit code; ``said`` then holds what stood on standard error."""
        out, err = self.process.communicate(timeout=seconds)
        assert out == b""
        assert TOKEN.encode() not in err
        self.said = [json.loads(line) for line in err.splitlines()]
        return self.process.returncode

    @property
    def reason(self) -> str:
        return str(self.said[-1].get("reason"))


class AgentContainer:
    """The process of an agent's container, started again where it ended, as the kubelet does."""

    def __init__(self, folder: Path, path: Path, environ: dict[str, str] | None = None, code: str = "") -> None:
        self.path = path
        self._folder = folder
        self._environ = environ or {}
        self._code = code
        self._over = False
        self.starts = 0
        self._process = self._started()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _started(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{self._code}\nfrom simulator import agent_container as a\n"
        code += "a.main()" if not self._code else "prepare(a); a.main()"
        with (self._folder / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, "--socket", str(self.path), "--root", str(self._folder)],
                env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **self._environ},
                stdout=log,
                stderr=log,
            )

    def _watch(self) -> None:
        while True:
            self._process.wait()
            if self._over:
                return
            self._process = self._started()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, seconds: float = 5.0) -> int:
        self._over = True
        self._process.send_signal(signal.SIGTERM)
        self._watching.join(seconds)
        assert not self._watching.is_alive(), "SIGTERM did not end it"
        return self._process.returncode


@contextmanager
def intake_with(*assignments: dict[str, Any]) -> Iterator[Intake]:
    opened = Intake(list(assignments))
    try:
        yield opened
    finally:
        opened.close()


__all__ = ["assignment"]
