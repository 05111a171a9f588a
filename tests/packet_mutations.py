"""Every change of one place in a packet, and whether a replay that knows no expected hash refuses it."""

import contextlib
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packets import ORDER, Packet, Raw, load, seal_hashes, text_of, written

from grading import packet_checking, replay_packet
from grading.packet_reading import PacketRefused

Path_ = tuple[str | int, ...]

HASHES = ("manifest_hash", "artifact", "content_hash", "ledger_hash", "packet_hash")
"""Fields that are made anew after a change of anything else, and stay as changed where they are what is changed."""

VOCABULARIES = (
    ("refunded", "not_refunded", "needs_review"),
    ("committed", "not_committed", "unknown"),
    ("settled", "not_confirmed", "not_claimed", "unknown"),
    ("lost", "fenced"),
    ("strict", "parallel"),
    ("alternate", "forward", "reversed"),
    ("process", "user", "container"),
    ("recorder", "journal"),
    ("passed", "failed", "unscored"),
    ("graded", "missing"),
    ("baseline", "candidate"),
    ("USD", "EUR", "GBP"),
    ("PermissionError", "ValueError", "ToolTimeout", "InvalidCall"),
    ("order-a", "order-b", "order-c"),
    ("measured",),
    ("pass", "fail", "abstain"),
    ("known", "unknown", "not_dispatched"),
    ("qualified_pass", "qualified_fail", "qualified_abstention", "unqualified", "pending"),
    ("not_judged", "budget", "judge_unavailable"),
    ("judge_error:TooLong", "judge_error:Refusal"),
    ("max_completion_tokens", "max_tokens"),
)


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place that holds no further ones."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items or (isinstance(value, list) and not value):
        yield path
        return
    for key, item in items:
        yield from leaves(item, (*path, key))


def containers(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every list and object, from the outside in."""
    if isinstance(value, dict | list):
        yield path
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from containers(item, (*path, key))


def value_at(packet: Any, path: Path_) -> Any:
    for part in path:
        packet = packet[part]
    return packet


def label(packet: Packet, path: Path_) -> str:
    """The field that a place belongs to, whichever trial, call or case it is of."""
    parts = []
    for position, part in enumerate(path):
        if isinstance(part, str):
            parts.append(f".{part}")
        elif path[position - 1] == "calls" and path[position - 2] == "content":
            parts.append(f"[{_kind(value_at(packet, path[: position + 1]))}]")
        else:
            parts.append("[]")
    return "".join(parts).removeprefix(".")


def _kind(call: dict[str, Any]) -> str:
    if "error" in call:
        return str(call["error"])
    result = call["result"]
    if isinstance(result, dict) and result.get("status") in ("blocked", "already_committed"):
        return str(result["status"])
    return "false" if result is False else "answered"


def other_values(value: Any) -> Iterator[Any]:
    """Values that stand for a kind of change each: of the value, of its type, to null, to what is no JSON."""
    yield from (each for each in (None, True, False, 0, 1, "x") if not _same(each, value))
    if isinstance(value, bool) or value is None:
        yield {}
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value + 0.5, Raw(f"{value}.0"), Raw("NaN"), str(value))
    elif isinstance(value, float):
        yield from (value + 1, -value, Raw("NaN"), Raw(f"{value}0"))
    elif isinstance(value, str):
        yield from (value + "x", value[:-1], Raw('"\\ud800"'), [value])
        yield from (word for words in VOCABULARIES if value in words for word in words if word != value)
        if value.startswith("sha256:"):
            yield value[:-1] + ("0" if value[-1] != "0" else "1")
        if re.fullmatch(r"[0-9.]+", value):
            yield value[:-1] + ("4" if value[-1] != "4" else "5")
    elif isinstance(value, list):
        yield from ([None], ["x"], [{}])
    elif isinstance(value, dict):
        yield from ({"x": 0}, {"x": "y"}, [])


def few_values(value: Any) -> Iterator[Any]:
    """A change of value and one of type: for a field whose other places were changed in every way already."""
    values = list(other_values(value))
    yield next((each for each in values if type(each) is type(value)), values[0])
    yield next(each for each in values if type(each) is not type(value))


def other_structures(value: Any) -> Iterator[Any]:
    """A list without, with twice, and with two exchanged of its elements; an object with a member less or more."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield value[:position] + value[position + 1 :]
            yield [*value[: position + 1], copy.deepcopy(item), *value[position + 1 :]]
            if position and value[position - 1] != item:
                yield [*value[: position - 1], item, value[position - 1], *value[position + 1 :]]
    elif isinstance(value, dict):
        for name in value:
            yield {key: item for key, item in value.items() if key != name}
        yield {**value, "unknown": None}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


class Mutations:
    """Makes changes of a packet and replays them. Trials that were replayed already are remembered by their bytes."""

    def __init__(self, packet: Packet, folder: Path) -> None:
        self.packet = packet
        self._file = folder / "changed.json"
        self._file.write_bytes(written(packet))
        self.sha256 = replay_packet.replay_packet(self._file).sha256
        self._whole = written(packet)
        self._texts = {id(each): text_of(each) for name in ("artifacts", "rows") for each in packet[name]}
        self._texts[id(packet["manifest"])] = text_of(packet["manifest"])

    def data(self, path: Path_, value: Any, *, manifest: bool) -> bytes:
        """The bytes with a new value in one place, and the hashes above it made anew."""
        if path == ("packet_hash",):
            return self._whole[: self._whole.rindex(b'"packet_hash":')] + b'"packet_hash":%b}\n' % text_of(value)
        changed = _with(self.packet, path, value)
        hash_name = str(path[-1]) if path[-1] in HASHES else None
        if manifest:
            changed = copy.deepcopy(changed)
            return written(seal_hashes(changed, manifest=True, keep=hash_name))
        if path == ("artifacts",) and isinstance(value, list):
            changed["rows"] = [dict(row) for row in changed["rows"]]
            changed["artifacts"] = [copy.deepcopy(artifact) for artifact in value]
            return written(seal_hashes(changed))
        if path[0] == "artifacts" and len(path) > 1:
            # The one artifact that was changed, with the hashes above it; all others are written already.
            position = int(path[1])
            row = [place for place, each in enumerate(changed["rows"]) if each["artifact"] is not None][position]
            part = {"artifacts": [_own_ledger(changed["artifacts"][position])], "rows": [dict(changed["rows"][row])]}
            seal_hashes(part, keep=hash_name)
            changed["artifacts"] = _with(changed["artifacts"], (position,), part["artifacts"][0])
            changed["rows"] = _with(changed["rows"], (row,), part["rows"][0])
        return written(changed, self._texts)

    def accepted(self, data: bytes, *, expected: str | None = None) -> bool:
        """Whether a replay holds. A change that gives the same bytes is none.

        Raises:
            Exception: anything but a refusal is a fault of the replay.
        """
        assert data != self._whole
        self._file.write_bytes(data)
        try:
            replay_packet.replay_packet(self._file, expected_sha256=expected)
        except PacketRefused:
            return False
        return True


def _with(packet: Any, path: Path_, value: Any) -> Any:
    """A packet that shares with the old one all but what leads to one place."""
    if not path:
        return value
    other = copy.copy(packet)
    other[path[0]] = _with(packet[path[0]], path[1:], value)
    return other


def _own_ledger(artifact: Any) -> Any:
    if not isinstance(artifact, dict) or not isinstance(artifact.get("ledger"), dict):
        return artifact
    ledger = dict(artifact["ledger"])
    if isinstance(ledger.get("envelope"), dict):
        ledger["envelope"] = dict(ledger["envelope"])
    return {**artifact, "ledger": ledger}


@contextlib.contextmanager
def remembering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trial's check depends on the manifest, its place and its bytes alone: the same is not done again."""
    check = packet_checking.Checker.check
    known: dict[Any, Any] = {}

    def remembered(self: packet_checking.Checker, sequence: int, pair: packet_checking.Pair) -> Any:
        key = (self._manifest_hash, sequence, pair)
        if key not in known:
            if len(known) > 10_000:
                known.clear()
            try:
                known[key] = check(self, sequence, pair)
            except PacketRefused as refused:
                known[key] = refused
        found = known[key]
        if isinstance(found, PacketRefused):
            raise found
        return found

    with monkeypatch.context() as patch:
        patch.setattr(packet_checking.Checker, "check", remembered)
        yield


def survivors(mutations: Mutations, *, under: tuple[str, ...] = ORDER, manifest: bool = False) -> dict[str, Path_]:
    """The fields of which some change is accepted, each with a place; every leaf and container below is changed."""
    packet = {**mutations.packet}
    packet.setdefault("packet_hash", "sha256:" + "0" * 64)
    found: dict[str, Path_] = {}
    changed: set[Path_] = set()
    seen: dict[str, int] = {}
    for path in leaves(packet):
        if path[0] in under:
            places = seen[label(packet, path)] = seen.get(label(packet, path), 0) + 1
            for value in other_values(value_at(packet, path)) if places <= 3 else few_values(value_at(packet, path)):
                changed.add(path)
                _try(mutations, packet, path, value, found, "", manifest=manifest)
    for path in containers(packet):
        if path and path[0] in under:
            places = seen[label(packet, path)] = seen.get(label(packet, path), 0) + 1
            for value in other_structures(value_at(packet, path)) if places <= 6 else ():
                _try(
                    mutations, packet, path, value, found, "{}" if isinstance(value, dict) else "[]", manifest=manifest
                )
    assert changed == {path for path in leaves(packet) if path[0] in under}
    return found


def _try(
    mutations: Mutations,
    packet: Packet,
    path: Path_,
    value: Any,
    found: dict[str, Path_],
    suffix: str,
    *,
    manifest: bool,
) -> None:
    name = label(packet, path) + suffix
    if name in found:
        return  # one accepted change is enough to know the field
    data = mutations.data(path, value, manifest=manifest)
    if mutations.accepted(data):
        assert not mutations.accepted(data, expected=mutations.sha256), name
        found[name] = path


def mutations_of(path: Path, folder: Path) -> Mutations:
    """The changes of an exported packet."""
    return Mutations(load(path), folder)
