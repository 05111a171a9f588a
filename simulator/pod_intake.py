"""A pod's line to the intake of its cluster: JSON over HTTP, tried again while the intake is away.

Every answer is given within a time limit, every request may be given twice: the intake takes the second for the first.
The wire format is simulator/pod_protocol.py.
"""

import http.client
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

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


class Intake:
    """One connection, opened again where it was lost. Not for two threads.

    Args:
        url: such as ``http://cellwise-intake.cellwise.svc:8080``.
        token_file: read anew for each request, since the kubelet renews it.
        request_seconds: all that one request may take, until the last byte of its answer.
        retry_seconds: how long one that goes wrong is given again before the intake counts as lost.
    """

    def __init__(self, url: str, token_file: Path, request_seconds: float, retry_seconds: float) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=request_seconds)
        self._path = parts.path.rstrip("/")
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
        except _Closed as error:
            if not had_been_open:
                raise Away(str(error)) from error
        try:
            return self._posted(path, body, seconds or self._request_seconds)
        except _Closed as error:
            raise Away(str(error)) from error

    def _posted(self, path: str, body: bytes, seconds: float) -> Reply:
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Away(f"the token file {self._token_file} cannot be read") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._open = False
        try:
            with _within(seconds):
                self._connection.request("POST", self._path + path, body, headers)
                response = self._connection.getresponse()
                answer = response.read()
        except _OutOfTime as error:
            self._connection.close()
            raise Away(f"no answer within {seconds:g} s") from error
        except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected) as error:
            self._connection.close()
            raise _Closed(type(error).__name__) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Away(f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no whole answer'}") from error
        except BaseException:
            self._connection.close()
            raise
        self._open = not response.will_close
        if response.status in _LATER:
            raise Away(_told(response.status, answer), _seconds(response.getheader("Retry-After")))
        return Reply(response.status, answer)


class _Closed(Exception):  # noqa: N818 - reads as what happened
    """The other side closed the connection before it answered."""


class _OutOfTime(BaseException):
    """Raised by the alarm; no OSError, which http.client would swallow where it tries several addresses."""


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
        told = orjson.loads(body)["reason"]
    except (ValueError, KeyError, TypeError):
        return f"answered {status}"
    return f"answered {status}: {str(told)[:_LONGEST_REASON]}"


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header, in seconds or as a date; 0 where there is none."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
