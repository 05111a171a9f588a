"""The tool protocol: lines over a socket, whole, in order, never for longer than there is time."""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.agent import InvalidCall, Tools
from simulator.protocol import LONGEST_FRAME, Connection, DuplicateMember, FrameTooLong, parse


@pytest.fixture(params=["busy", "idle"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, socket.socket]]:
    """A connection that only waits, and one whose owner has something else to do meanwhile."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        if request.param == "idle":
            connection.when_idle = lambda: None
        yield connection, theirs


def test_what_else_there_is_to_do_is_done_in_each_wait_that_is_not_over_at_once(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, other = pair
    done = []
    connection.when_idle = lambda: done.append(time.monotonic())
    other.sendall(b"at once\n")
    assert connection.receive(time.monotonic() + 5) == b"at once"
    assert done == []
    later = threading.Timer(0.2, other.sendall, [b"later\n"])
    later.start()
    started = time.monotonic()
    assert connection.receive(started + 60) == b"later"
    later.join()
    assert len(done) == 1
    assert 0.005 < done[0] - started < 0.2
    with pytest.raises(TimeoutError):
        connection.receive(time.monotonic() + 0.05)
    assert len(done) == 2
    other.close()
    assert connection.receive(time.monotonic() + 5) is None


def test_lines_in_whatever_pieces_they_come(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    for piece in (b'{"a"', b": 1}\n{", b"}\n\n", b"rest"):
        other.sendall(piece)
    other.close()
    assert [connection.receive() for _ in range(3)] == [b'{"a": 1}', b"{}", b""]
    assert connection.receive() is None


def test_a_deadline_is_kept(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    other.sendall(b"half a line")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        connection.receive(started + 0.05)
    assert 0.05 <= time.monotonic() - started < 5
    other.sendall(b" and the rest\n")
    assert connection.receive(time.monotonic() + 5) == b"half a line and the rest"
    with pytest.raises(TimeoutError):
        connection.receive(time.monotonic() - 1)


def test_sending_to_someone_who_does_not_read(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    with pytest.raises(TimeoutError):
        connection.send(b"x" * 4_000_000, time.monotonic() + 0.05)
    other.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.send(b"x", time.monotonic() + 5)


def test_a_line_of_any_length_below_the_longest(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    sender = threading.Thread(target=other.sendall, args=(b"x" * LONGEST_FRAME + b"\n",))
    sender.start()
    assert connection.receive() == b"x" * LONGEST_FRAME
    sender.join()


def test_a_line_past_the_longest(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair

    def flood() -> None:
        try:
            while True:
                other.sendall(b"x" * 1_000_000)
        except OSError:
            pass

    sender = threading.Thread(target=flood)
    sender.start()
    with pytest.raises(FrameTooLong):
        connection.receive(time.monotonic() + 30)
    connection.close()
    sender.join(10)
    assert not sender.is_alive()


def test_a_watched_descriptor_interrupts_only_where_no_line_waits(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    news, theirs = socket.socketpair()
    with news, theirs:
        connection.watch(news.fileno())
        theirs.sendall(b"ended")
        other.sendall(b"last words\n")
        assert connection.receive(time.monotonic() + 5) == b"last words"
        with pytest.raises(InterruptedError):
            connection.receive(time.monotonic() + 5)
        connection.unwatch()
        assert not connection.watched
        with pytest.raises(TimeoutError):
            connection.receive(time.monotonic() + 0.01)


def test_a_line_that_came_along_with_another_is_held(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    other.sendall(b'{"started": 1}\n{"exited": 0}\n')
    assert connection.receive() == b'{"started": 1}'
    assert connection.holds_line
    assert select.select([connection.socket], [], [], 0)[0] == []
    assert connection.receive() == b'{"exited": 0}'
    assert not connection.holds_line


@pytest.mark.parametrize("line", [b'{"a": 1, "a": 1}', b'{"a": {"b": 1, "b": 2}}', b'[{"\\u0061": 1, "a": 2}]'])
def test_a_member_named_twice(line: bytes) -> None:
    with pytest.raises(DuplicateMember):
        parse(line)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"\xff", b"{'a': 1}", b'{"a": 1} {}', b"1" * 5000, b'"\x00"', b"\xef\xbb\xbf{}"]
)
def test_what_is_no_json(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of json's own
        parse(line)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(RecursionError):
        parse(b"[" * 200_000)


@pytest.mark.parametrize("depth", [254, 255, 300, 800])
def test_a_line_that_is_deeper_than_the_fast_encoder_writes(depth: int) -> None:
    found = parse(b'{"tool":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}")
    assert list(found) == ["tool"]


def test_numbers_are_kept_exactly() -> None:
    assert repr(parse(b"[4500.0, 4500, 9007199254740993, -0.0, 1e400, NaN]")) == (
        "[4500.0, 4500, 9007199254740993, -0.0, inf, nan]"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=8
    )
)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert parse(json.dumps(value).encode()) == value


class _Recorder(threading.Thread):
    """Answers every line with the next of some answers."""

    def __init__(self, other: socket.socket, answers: list[Any]) -> None:
        super().__init__()
        self._connection = Connection(other)
        self._answers = answers
        self.heard: list[Any] = []

    def run(self) -> None:
        for answer in self._answers:
            line = self._connection.receive()
            assert line is not None
            self.heard.append(parse(line))
            self._connection.send(json.dumps(answer).encode())


def test_tools_send_arguments_by_name_and_raise_by_class(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    answers = [{"result": [1]}, {"error": "PermissionError"}, {"error": "InvalidCall"}, {"error": "InvalidCall"}]
    recorder = _Recorder(other, answers)
    recorder.start()
    tools = Tools(connection)
    assert tools.get_order(order_id="a") == [1]
    with pytest.raises(PermissionError):
        tools.call("get_order", tool="a name that is an argument", self=1)
    with pytest.raises(InvalidCall):
        tools.get_order(order_id=object())
    with pytest.raises(InvalidCall):
        tools.get_order(order_id=float("nan"))
    recorder.join()
    assert recorder.heard[:3] == [
        {"tool": "get_order", "arguments": {"order_id": "a"}},
        {"tool": "get_order", "arguments": {"tool": "a name that is an argument", "self": 1}},
        {"tool": "get_order", "arguments": None},
    ]
    assert repr(recorder.heard[3]) == "{'tool': 'get_order', 'arguments': {'order_id': nan}}"


def test_tools_end_the_agent_with_the_trial(pair: tuple[Connection, socket.socket]) -> None:
    connection, other = pair
    other.close()
    with pytest.raises((SystemExit, BrokenPipeError)):
        Tools(connection).list_orders(customer_id="a")
