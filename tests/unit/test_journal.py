"""The journal tells what a killed recorder had done: whole lines, in order, and where somebody else changed it."""

from pathlib import Path

import orjson
import pytest

from simulator.journal import Journal, locked
from simulator.journal_reading import JournalChanged, read_journal

CALL = {"tool": "get_order", "arguments": {"order_id": "a"}, "error": "PermissionError"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.journal"


def written(path: Path) -> Journal:
    journal = Journal(path)
    journal.begin(7, "sha256:a", 10)
    journal.call(7, CALL, 11, 12)
    journal.call(7, {**CALL, "arguments": {"order_id": "\u00e9\n"}}, 13, 14)
    journal.ledger(7, b'{"a":1,"ledger":{}}')
    journal.begin(8, "sha256:b", 20)
    journal.call(8, CALL, 21, 22)
    return journal


def test_what_was_written_is_read(path: Path) -> None:
    written(path)
    found = read_journal(path)
    assert list(found) == [7, 8]
    assert (found[7].assignment, found[7].started) == ("sha256:a", 10)
    assert [entry["call"]["arguments"]["order_id"] for entry in found[7].calls] == ["a", "\u00e9\n"]
    assert found[7].ledger == b'{"a":1,"ledger":{}}'
    assert found[8].ledger is None
    assert orjson.loads(found[8].document()) == {
        "assignment": "sha256:b",
        "started": 20,
        "calls": [{"call": CALL, "started": 21, "ended": 22}],
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_last_line_was_never_answered(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        found = read_journal(path)
        assert (len(found[7].calls), found[7].ledger is not None, found[8].calls) == (2, True, [])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"5",
        b"[]",
        b"{}",
        b"not json",
        b"\x00\x00\x00",
        b'{"attempt":8}',
        b'{"attempt":"8","begin":{"assignment":"a","started":1}}',
        b'{"attempt":true,"begin":{"assignment":"a","started":1}}',
        b'{"attempt":8,"begin":{"started":1}}',
        b'{"attempt":8,"call":{},"started":1,"ended":2}',
        b'{"attempt":8,"call":[],"started":1,"ended":2}',
        b'{"attempt":8,"call":{"tool":5,"arguments":{}},"started":1,"ended":2}',
        b'{"attempt":8,"call":{"tool":"a","arguments":{}},"started":"1","ended":2}',
        b'{"attempt":8, "ledger" :{}}',
    ],
)
def test_a_line_that_no_worker_wrote(path: Path, line: bytes) -> None:
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], line + b"\n", *lines[4:]]))
    with pytest.raises(JournalChanged, match=r"worker\.journal:5: no line of a journal") as caught:
        read_journal(path)
    # What stands before it is told all the same.
    assert caught.value.attempts[7].ledger == b'{"a":1,"ledger":{}}'
    assert caught.value.attempts.keys() <= {7, 8}


def test_forgotten(path: Path) -> None:
    journal = written(path)
    journal.forget()
    assert read_journal(path) == {}
    journal.begin(9, "sha256:c", 30)
    assert list(read_journal(path)) == [9]


def test_its_worker_holds_a_lock(path: Path) -> None:
    import os

    journal = written(path)
    with locked(path, seconds=0.05) as gone:
        assert not gone
    os.close(journal._file)
    with locked(path, seconds=5) as gone:
        assert gone
