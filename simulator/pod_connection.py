"""One HTTP/1.1 connection that posts: httptools' parser over a socket.

The standard library's client costs a pod more to import than all of the simulator (docs/decisions/0007). Nothing here
waits for a limited time: whoever asks sets an alarm.
"""

import socket
from typing import Any

import httptools

_PIECE = 64 * 1024


class Closed(Exception):  # noqa: N818 - reads as what happened
    """The other side closed the connection before it answered, as it may between two requests."""


class Broken(Exception):  # noqa: N818 - reads as what happened
    """An answer that is none, or not whole."""


class Answer:
    """What comes back, filled in by the parser as it is fed. Names of headers are in lower case."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.reusable = False
        """Whether the connection takes another request."""
        self.is_whole = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def feed(self, piece: bytes) -> None:
        """Raises Broken for what is no answer."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as error:
            # What a signal's handler raised while the parser called us: it is for those who wait for it.
            raise (error.__context__ or error) from None
        except httptools.HttpParserError as error:
            raise Broken(f"no HTTP: {error}") from error

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_whole = True
        self.status = self._parser.get_status_code()
        # Asked here: once this returns, the parser is about the next message.
        self.reusable = self._parser.should_keep_alive()


class Connection:
    """Opened with the first request, and again after :meth:`close`. Not for two threads."""

    def __init__(self, host: str, port: int, *, tls: bool) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        name = host.encode("ascii" if host.isascii() else "idna")
        self._name = b"%b:%d" % (b"[%b]" % name if b":" in name else name, port)
        self._socket: socket.socket | None = None

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Sends a request and reads its answer, whatever its status.

        Raises:
            Closed, Broken: see there. OSError: no connection, or it was lost.
        """
        if self._socket is None:
            self._socket = self._connected()
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        head = b"%b\r\nHost: %b\r\nContent-Length: %d\r\n\r\n" % ("\r\n".join(lines).encode(), self._name, len(body))
        try:
            self._socket.sendall(head + body)
            return self._read(self._socket)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed(type(error).__name__) from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read(self, connected: socket.socket) -> Answer:
        answer = Answer()
        begun = False
        while not answer.is_whole:
            piece = connected.recv(_PIECE)
            if not piece:
                raise Broken("no whole answer") if begun else Closed("closed without an answer")
            begun = True
            answer.feed(piece)
        return answer

    def _connected(self) -> socket.socket:
        # As bytes: of a text Python makes an international name, for which it loads tables.
        host: Any = self._host.encode() if self._host.isascii() else self._host
        connected = socket.create_connection((host, self._port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._tls:
            return connected
        import ssl

        return ssl.create_default_context().wrap_socket(connected, server_hostname=self._host)
