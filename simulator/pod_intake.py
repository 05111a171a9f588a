"""A pod's line to the intake of its cluster: JSON over HTTP, tried again while the intake is away.

Every answer is given within a time limit, every request may be given twice: the intake takes the second for the first.
The wire format is simulator/pod_protocol.py.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.json_text import loads
from simulator.pod_connection import Broken, Closed, Connection

if TYPE_CHECKING:
    from pathlib import Path

_LATER = frozenset({401, 408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same may go well: 401 too, since a token runs out and is renewed on disk."""

_FIRST_WAIT = 0.2
_LONGEST_WAIT = 10.0
_LONGEST_REASON = 500


class IntakeLost(Exception):  # noqa: N818 - reads as what happened
    """The intake did not answer in all the time there was, or not as an intake does. No OSError: an agent's and a
    disk's are other things."""


class Fenced(Exception):  # noqa: N818 - reads as what happened
    """The attempt is no longer this pod's."""


class Refused(Exception):  # noqa: N818 - reads as what happened
    """The intake will never have anything to do for this pod."""


class Away(Exception):  # noqa: N818 - reads as what happened
    """One request that may be given again. ``after`` is how many seconds later the intake wants it."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Reply(NamedTuple):
    status: int
    body: bytes


_OF_NAMES = "abcdefghijklmnopqrstuvwxyz0123456789.-"
_OF_PATHS = _OF_NAMES + "/_"


def parts_of(url: str) -> tuple[str, str, int | None, str]:
    """A URL's scheme, host, port and path. One such as the controller writes is told at once, any other by urllib,
    which is slow to load.

    Raises:
        ValueError: it is none.
    """
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    host, colon, port = place.partition(":")
    if scheme in ("http", "https") and host and not host.strip(_OF_NAMES) and not path.strip(_OF_PATHS):
        if not colon:
            return scheme, host, None, slash + path
        if port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535:
            return scheme, host, int(port), slash + path
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port, parts.path


class Intake:
    """One connection, opened again where it was lost. Not for two threads.

    Args:
        url: such as ``http://cellwise-intake.cellwise.svc:8080``.
        token_file: read anew for each request, since the kubelet renews it.
        request_seconds: all that one request may take, until the last byte of its answer.
        retry_seconds: how long one that goes wrong is given again before the intake counts as lost.
    """

    def __init__(self, url: str, token_file: "str | Path", request_seconds: float, retry_seconds: float) -> None:
        scheme, host, port, path = parts_of(url)
        tls = scheme == "https"
        self._connection = Connection(host, port or (443 if tls else 80), tls=tls)
        self._path = path.rstrip("/")
        self._token_file = token_file
        self._request_seconds = request_seconds
        self._retry_seconds = retry_seconds
        self._open = False

    def ask(self, path: str, body: bytes) -> Reply:
        """Posts, and again with full jitter between while the intake is away.

        Raises:
            IntakeLost: it was away for too long.
        """
        until = time.monotonic() + self._retry_seconds
        wait = _FIRST_WAIT
        while True:
            try:
                return self.ask_once(path, body)
            except Away as error:
                pause = error.after + jitter(wait)
                if time.monotonic() + pause > until:
                    raise IntakeLost(f"{path.partition('?')[0]}: {error}") from error
                time.sleep(pause)
                wait = min(2 * wait, _LONGEST_WAIT)

    def ask_once(self, path: str, body: bytes, seconds: float | None = None) -> Reply:
        """Posts once; twice where the intake had closed the connection between two requests.

        Raises:
            Away: no whole answer within the time, or one that says to come again.
        """
        had_been_open = self._open
        try:
            return self._posted(path, body, seconds or self._request_seconds)
        except Closed as error:
            if not had_been_open:
                raise Away(str(error)) from error
        try:
            return self._posted(path, body, seconds or self._request_seconds)
        except Closed as error:
            raise Away(str(error)) from error

    def _posted(self, path: str, body: bytes, seconds: float) -> Reply:
        try:
            with open(self._token_file) as file:
                token = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Away(f"the token file {self._token_file} cannot be read") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._open = False
        try:
            with _within(seconds):
                answer = self._connection.post(self._path + path, headers, body)
        except _OutOfTime as error:
            self._connection.close()
            raise Away(f"no answer within {seconds:g} s") from error
        except Broken as error:
            self._connection.close()
            raise Away(str(error)) from error
        except OSError as error:
            self._connection.close()
            raise Away(f"{type(error).__name__}: {error.strerror or 'no whole answer'}") from error
        except BaseException:
            self._connection.close()
            raise
        self._open = answer.reusable
        if not answer.reusable:
            self._connection.close()
        if answer.status in _LATER:
            after = answer.headers.get(b"retry-after", b"").decode("latin-1")
            raise Away(_told(answer.status, answer.body), _seconds(after))
        return Reply(answer.status, answer.body)


class _OutOfTime(BaseException):
    """Raised by the alarm; no OSError, which the socket module would swallow where it tries several addresses."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Ends whatever waits inside, a name that does not resolve or an answer that comes byte by byte."""

    def out_of_time(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def jitter(most: float) -> float:
    """Between nothing and ``most``, so that many pods do not come back at once."""
    return most * int.from_bytes(os.urandom(4), "big") / 2**32


def reason(reply: Reply) -> str:
    """Why an answer is a refusal, as the intake tells it."""
    return _told(reply.status, reply.body)


def _told(status: int, body: bytes) -> str:
    try:
        told = loads(body)["reason"]
    except (ValueError, KeyError, TypeError):
        return f"answered {status}"
    return f"answered {status}: {str(told)[:_LONGEST_REASON]}"


def _seconds(retry_after: str) -> float:
    """A Retry-After header, in seconds or as a date; 0 where there is none."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
