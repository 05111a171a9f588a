"""Reading a packet in constant memory: the layout first, then each section's elements one after the other.

Nothing here judges what the elements say; grading/packet_checking.py does.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from grading.packet import OPENING, SECTIONS, VERSION
from simulator.canonical import sha256

LONGEST_LINE = 256 * 1024 * 1024
"""Bytes. The largest ledger is a quarter of it."""

_CALL = re.compile(r"\bcalls(?:\[|\.)([0-9]+)")
_HASH = re.compile(rb"sha256:[0-9a-f]{64}")


class PacketRefused(ValueError):  # noqa: N818 - reads as what becomes of it
    """A packet that contradicts itself, the installed world or what its reader expects of it.

    Args:
        trial: the planned sequence number, where the fault is in one trial.
        field: the member path. In a trial it begins with ``row``, ``grades``, ``judgments`` or ``ledger``, elsewhere
            with a member of the packet.
    """

    def __init__(self, message: str, *, field: str, trial: int | None = None) -> None:
        self.trial = trial
        self.field = field
        call = _CALL.search(field) if trial is not None else None
        self.event = int(call[1]) if call else None
        """The position of the tool call, from 0, where the fault is in one."""
        self.message = message
        place = [f"trial {trial}"] if trial is not None else []
        place += [f"event {self.event}"] if self.event is not None else []
        super().__init__(f"{', '.join([*place, field])}: {message}")

    def __reduce__(self) -> tuple[object, ...]:
        return _refused, (self.message, self.field, self.trial)


def _refused(message: str, field: str, trial: int | None) -> PacketRefused:
    return PacketRefused(message, field=field, trial=trial)


class PacketFile:
    """A packet whose layout is sound.

    Raises:
        PacketRefused: it is no packet of this version, or not in its layout.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = b""
        self.manifest_hash = ""
        self.totals = b""
        self.packet_hash = ""
        """As written in the packet, and"""
        self.found_packet_hash = ""
        """as it would have to be."""
        self.counts: dict[str, int] = {}
        """Elements by section."""
        self._offsets: dict[str, int] = {}
        with path.open("rb") as file:
            self._identity = _identity(file)
            self.sha256 = self._index(file)

    def elements(self, section: str) -> Iterator[bytes]:
        """Each element's canonical JSON, in order.

        Raises:
            PacketRefused: the file was changed since it was opened.
        """
        with self.path.open("rb") as file:
            if _identity(file) != self._identity:
                raise PacketRefused("was changed while it was read", field="the file")
            file.seek(self._offsets[section])
            count = self.counts[section]
            for position in range(count):
                line = file.readline()
                yield line[: -2 if position < count - 1 else -1]
            if _identity(file) != self._identity:
                raise PacketRefused("was changed while it was read", field="the file")

    def _index(self, file: IO[bytes]) -> str:
        lines = _Lines(file)
        opening = lines.next()
        if opening != OPENING + b"\n":
            version = re.match(rb'\{"version":([0-9]{1,9}),', opening)
            if version is not None and int(version[1]) != VERSION:
                raise PacketRefused(f"is {int(version[1])}; this Cellwise reads {VERSION}", field="version")
            raise PacketRefused(f"is no packet: its first line is not {OPENING.decode()}", field="the file")
        self.manifest = lines.member("manifest", b",\n")
        self.manifest_hash = _hash_of(lines.member("manifest_hash", b",\n"), "manifest_hash")
        for section in SECTIONS:
            self._offsets[section], self.counts[section] = _elements(lines, section)
        self.totals = lines.member("totals", b",\n")
        self.found_packet_hash = lines.digest
        self.packet_hash = _hash_of(lines.member("packet_hash", b"}\n"), "packet_hash")
        if lines.next():
            raise PacketRefused("there is more after its end", field="packet_hash")
        return lines.digest


class _Lines:
    """The lines of a file, hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.offset = 0

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    def next(self) -> bytes:
        line = self._file.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            raise PacketRefused(f"line at byte {self.offset} is longer than {LONGEST_LINE} bytes", field="the file")
        self._hash.update(line)
        self.offset += len(line)
        return line

    def member(self, name: str, end: bytes) -> bytes:
        """The value of the member that must come next."""
        line = self.next()
        beginning = b'"%b":' % name.encode()
        if not line.startswith(beginning) or not line.endswith(end):
            raise PacketRefused(
                f'is missing, or not in its place: {_shown(line)} stands where the line "{name}" must be, '
                "complete and in the layout of a packet",
                field=name,
            )
        return line[len(beginning) : -len(end)]


def _elements(lines: _Lines, section: str) -> tuple[int, int]:
    """Where a section's elements begin, and how many they are."""
    if lines.member(section, b"\n") != b"[":
        raise PacketRefused("does not begin a line of its own", field=section)
    offset, count = lines.offset, 0
    last = False
    while True:
        line = lines.next()
        if line == b"],\n":
            if count and not last:
                raise PacketRefused("an element is missing after the last comma", field=section)
            return offset, count
        if not line.startswith(b"{") or last:
            raise PacketRefused(f"{_shown(line)} is no element, nor the section's end", field=f"{section}[{count}]")
        last = line.endswith(b"}\n")
        if not last and not line.endswith(b"},\n"):
            raise PacketRefused("the element is not one whole line", field=f"{section}[{count}]")
        count += 1


def _hash_of(value: bytes, field: str) -> str:
    text = value[1:-1]
    if value != b'"%b"' % text or not _HASH.fullmatch(text):
        raise PacketRefused(f"{_shown(value)} is no SHA-256", field=field)
    return text.decode()


def check_manifest_hash(packet: PacketFile) -> None:
    """Refuses a manifest that is not the one hashed."""
    found = sha256(packet.manifest)
    if found != packet.manifest_hash:
        raise PacketRefused(f"is {packet.manifest_hash}, the manifest's is {found}", field="manifest_hash")


def member_path(dotted: str) -> str:
    """A path with positions in brackets, without the names of union members that pydantic puts into it."""
    parts = [part for part in dotted.split(".") if not re.fullmatch(r"(Answered|Failed|Refused)Call", part)]
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts).removeprefix(".")


def _shown(line: bytes) -> str:
    if not line:
        return "the end of the file"
    text = line[:60].decode(errors="replace")
    return repr(text + ("..." if len(line) > 60 else ""))


def _identity(file: IO[bytes]) -> tuple[int, int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
