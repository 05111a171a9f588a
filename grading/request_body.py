"""The body of a request: how long it may be and take to arrive, and the memory that all bodies at once may take."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.requests import ClientDisconnect, Request

_FULL_SECONDS = 1
_BODY_SECONDS = 60.0
"""For a body to arrive: one that never does would keep its room from all others."""


class RequestRefused(Exception):  # noqa: N818 - reads as what becomes of a request
    """An answer with an error's status.

    Args:
        retry_after: seconds after which the same may be asked again.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class Room:
    """How much of the memory the bodies of requests may take together. Of one event loop.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    @asynccontextmanager
    async def body(self, request: Request, largest: int) -> AsyncIterator[bytes]:
        """A request's whole body, which has its room until this is left.

        Args:
            largest: bytes that it may have.

        Raises:
            RequestRefused: it says no length or is longer, it did not arrive, or there is no room for it now.
        """
        size = _declared(request, largest)
        if size > self._left:
            raise RequestRefused(503, "too much is being sent at once", _FULL_SECONDS)
        self._left -= size
        try:
            yield await _arrived(request, largest)
        finally:
            self._left += size


def _declared(request: Request, largest: int) -> int:
    """The body's length as its head says: refused before any of it is read."""
    told = request.headers.get("content-length")
    if told is None:
        raise RequestRefused(411, "the request does not say how long its body is (Content-Length)")
    if not (told.isascii() and told.isdigit()):
        raise RequestRefused(400, "Content-Length is no number")
    if len(told) > 15 or int(told) > largest:
        raise RequestRefused(413, f"{told[:15]} bytes are more than such a request may have ({largest})")
    return int(told)


async def _arrived(request: Request, largest: int) -> bytes:
    pieces, size = [], 0
    try:
        with anyio.fail_after(_BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > largest:
                    raise RequestRefused(413, f"more bytes than such a request may have ({largest})")
                pieces.append(piece)
    except TimeoutError:
        raise RequestRefused(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise RequestRefused(400, "the connection was lost before the body had arrived") from None
    return b"".join(pieces)
