"""What becomes of a request while an intake restarts, a token runs out, or it is refused."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from grading.people_client import PeopleClient, PeopleRefused, PeopleUnavailable
from grading.people_protocol import Changed, Problem

CHANGED = Changed(id=1, name="refunds", state="paused", changed=True)
Answer = tuple[int, bytes, dict[str, str]]
GOOD: Answer = (200, CHANGED.model_dump_json().encode(), {})


def problem(status: int, error: str, place: str | None = None, **headers: str) -> Answer:
    return status, Problem(error=error, place=place).model_dump_json().encode(), headers


class Intake:
    """Answers in turn, the last answer for ever. None ends the connection without one."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.answers: list[Answer | None] = []
        self.tokens: list[str] = []
        self.renewals = 0
        intake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                intake.tokens.append(self.headers["authorization"])
                answer = intake.answers.pop(0) if len(intake.answers) > 1 else intake.answers[0]
                if answer is None:
                    self.close_connection = True
                    return
                status, body, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def token(self, *, renew: bool = False) -> str:
        self.renewals += renew
        return f"token-{self.renewals}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def intake() -> Iterator[Intake]:
    running = Intake()
    yield running
    running.close()


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def client(intake: Intake, clock: Clock, told: list[str | None] | None = None, patience: float = 60.0) -> PeopleClient:
    waiting = told.append if told is not None else (lambda _: None)
    return PeopleClient(intake, patience=patience, waiting=waiting, sleep=clock.sleep, clock=lambda: clock.now)


def test_an_intake_that_restarts_is_asked_again(intake: Intake, clock: Clock) -> None:
    intake.answers = [None, problem(503, "it drains", **{"retry-after": "7"}), None, problem(429, "slowly"), GOOD]
    told: list[str | None] = []
    with client(intake, clock, told) as asking:
        assert asking.pause("refunds") == CHANGED
    assert clock.slept == [0.25, 7.0, 1.0, 2.0]
    assert told[1] == "it drains"
    assert told[-2:] == ["slowly", None]


def test_patience_ends_and_says_why(intake: Intake, clock: Clock) -> None:
    intake.answers = [problem(503, "the store is away")]
    with (
        client(intake, clock, patience=10) as asking,
        pytest.raises(PeopleUnavailable, match="does not answer: the store is away"),
    ):
        asking.pause("refunds")
    assert sum(clock.slept) <= 10
    intake.answers = [None]
    intake.trouble = "no pod of cellwise-intake in namespace cellwise is ready"
    with (
        client(intake, clock, patience=1) as asking,
        pytest.raises(PeopleUnavailable, match="no pod of cellwise-intak"),
    ):
        asking.pause("refunds")


def test_a_token_that_has_run_out_is_renewed_once(intake: Intake, clock: Clock) -> None:
    intake.answers = [problem(401, "expired"), GOOD]
    with client(intake, clock) as asking:
        assert asking.pause("refunds") == CHANGED
    assert (intake.tokens, clock.slept) == (["Bearer token-0", "Bearer token-1"], [])
    intake.answers = [problem(401, "of another audience")]
    with client(intake, clock) as asking, pytest.raises(PeopleRefused) as caught:
        asking.pause("refunds")
    assert str(caught.value) == "the cluster does not accept this token: of another audience"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (problem(403, "viewer may not"), "you may not do that: viewer may not"),
        (problem(404, "no matrix 'x'"), "no matrix 'x'"),
        (problem(409, "it is cancelled"), "it is cancelled"),
        (problem(413, "at most 5 bytes"), "the manifest is too large: at most 5 bytes"),
        (problem(422, "must be 1", "manifest.version"), "manifest.version: must be 1"),
        ((418, b"<html>", {}), "it answered 418 I'm a Teapot"),
    ],
)
def test_refusals_are_told_at_once(intake: Intake, clock: Clock, answer: Answer, message: str) -> None:
    intake.answers = [answer]
    with client(intake, clock) as asking, pytest.raises(PeopleRefused) as caught:
        asking.pause("x")
    assert (str(caught.value), caught.value.status, clock.slept) == (message, answer[0], [])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"version": 2}', b"<html>", b"\xff"])
def test_an_answer_of_another_version_is_not_guessed_at(intake: Intake, clock: Clock, body: bytes) -> None:
    intake.answers = [(200, body, {})]
    with client(intake, clock) as asking, pytest.raises(PeopleUnavailable, match="is not understood"):
        asking.pause("refunds")


def test_a_failure_of_the_intake_itself_is_not_repeated(intake: Intake, clock: Clock) -> None:
    intake.answers = [(500, b"Internal Server Error", {})]
    with client(intake, clock) as asking, pytest.raises(PeopleUnavailable, match="its log tells why"):
        asking.pause("refunds")
    assert clock.slept == []
