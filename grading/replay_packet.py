"""Replay of a packet: every trial checked again, without agent, judge or network, and what that proves.

Nothing in a packet is believed that follows from something else in it: :mod:`grading.packet_checking` makes each trial
again, and what comes out must be the packet, byte for byte. What nothing else contradicts (what was chosen, and what
was only ever observed) is protected by the expected hash of the whole file alone. Source: the order-resolution seed,
katas 43 and 44.
"""

import multiprocessing
import re
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from grading.arms import ARMS
from grading.judge.judgment import Judgment
from grading.manifest import Manifest
from grading.packet import Incident, Totals, cost_json
from grading.packet_checking import Checker, Pair, Replayed, against, invalid
from grading.packet_judgment import Calls
from grading.packet_reading import PacketFile, PacketRefused, check_manifest_hash
from grading.schedule import at
from simulator.canonical import canonical
from simulator.replay import first_difference
from simulator.source import simulator_identity

PROVES = (
    "every recorded call, given again to a fresh world made from the registered case, has the recorded result or error",
    "every ledger ends in the recorded states, and the grades, rows, costs, latencies and totals follow from it",
    "no planned trial, arm, case or repetition is left out, repeated or out of order; a missing one is shown as such",
    "every judgment is by the registered judge and calibration, on what happened in its own trial; its receipt fits",
)
PROVES_NOT = (
    "that the calls were ever made: a fabricated packet that is consistent passes",
    "who made it, or where: a hash shows integrity, not origin",
    "that the cases are right, or speak for other customers than theirs",
    "that a message is true: what a judge said was only observed, and counts by a calibration that you chose to trust",
    "that times and the agents' own accounts of their usage are right: they were only observed",
)

_CHUNK_TRIALS = 250
_CHUNK_BYTES = 4 * 1024 * 1024
_IN_PROCESS = 500
"""Trials that are replayed sooner than further processes are there."""


@dataclass(frozen=True, slots=True)
class Report:
    """A packet that holds, and what that is worth."""

    name: str
    sha256: str
    """Of the file's bytes."""
    manifest_hash: str
    anchored: bool
    """Whether the caller knew the hash beforehand."""
    trials: int
    replayed: int
    missing: int
    pairs: int
    pairs_in_order: int
    reused: int
    incidents: int
    profile: str
    judge: str | None
    """The registered judge's configuration hash."""
    calibration: str | None
    """That it was to count by."""
    calibration_trusted: bool | None
    """By the caller; None where there is none."""
    judge_calls: dict[str, Any]
    """The cost of each call once, however many trials carry it."""
    totals: dict[str, Any]
    """As they are for this caller: under a calibration that is not trusted no judgment counts."""
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            **{name: getattr(self, name) for name in self.__slots__},
            "proves": list(PROVES),
            "does_not_prove": list(PROVES_NOT),
        }


def replay_packet(
    path: Path,
    *,
    expected_sha256: str | None = None,
    trusted_calibrations: Collection[str] = (),
    processes: int = 1,
) -> Report:
    """Replays a packet.

    Args:
        expected_sha256: the anchor: the hash of the file's bytes that the caller knows from elsewhere.
        trusted_calibrations: hashes of the calibration records that the caller trusts. Nothing in a packet can make
            one trusted: judgments under another one are checked all the same, and count for nothing.

    Raises:
        PacketRefused: naming the first place that is contradicted.
        OSError: the file cannot be read.
    """
    trusted = frozenset(_hash_of(each, "--trust-calibration") for each in trusted_calibrations)
    packet = PacketFile(path)
    if expected_sha256 is not None:
        check_expected(packet, expected_sha256)
    check_manifest_hash(packet)
    checker = _checker(packet.manifest)
    calibration = checker.manifest.judge.calibration if checker.manifest.judge is not None else None
    trust = calibration is None or calibration in trusted
    whole = Replayed(trusted=Totals())
    reused: set[bytes] = set()
    calls = Calls()
    for part in _replay(packet, checker, processes):
        for name in part.reused:
            # Names of this matrix's own trials follow from the manifest; others can only be told apart.
            if (key := name.encode()) in reused:
                raise PacketRefused(f"the evidence of trial {name} is used twice", field="artifacts")
            reused.add(key)
        for used in part.calls:
            calls.add(used)
        whole.merge(part)
    if whole.trials != checker.planned:
        raise PacketRefused("there is no row of this planned trial", trial=whole.trials, field="row")
    _check_end(packet, whole.totals, checker)
    anchored = expected_sha256 is not None
    return _report(packet, checker.manifest, whole, calls, anchored=anchored, calibration_trusted=trust)


def check_expected(packet: PacketFile, expected: str) -> None:
    """Refuses a file whose bytes are not the expected ones.

    Raises:
        PacketRefused: they are not, or the expectation is no SHA-256.
    """
    wanted = _hash_of(expected, "--expect-sha256")
    if packet.sha256 != wanted:
        raise PacketRefused(f"its SHA-256 is {packet.sha256}, expected was {wanted}", field="the file")


def _hash_of(text: str, option: str) -> str:
    digits = text.removeprefix("sha256:").lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise PacketRefused(f"{text!r} is no SHA-256: write 64 hexadecimal digits", field=option)
    return f"sha256:{digits}"


@lru_cache(maxsize=1)
def _checker(manifest: bytes) -> Checker:
    return Checker(manifest)


def _replay(packet: PacketFile, checker: Checker, processes: int) -> Iterator[Replayed]:
    """The parts of a packet, replayed, in planned order."""
    chunks = _chunks(packet)
    if processes < 2 or packet.counts["rows"] <= _IN_PROCESS:
        for first, pairs in chunks:
            yield checker.replay(first, pairs)
        return
    # Fresh processes: nothing that this one has open or runs is copied into them.
    context = multiprocessing.get_context("spawn")
    running: deque[Future[Replayed]] = deque()
    with ProcessPoolExecutor(processes, context, _start, (packet.manifest,)) as pool:
        try:
            for first, pairs in chunks:
                running.append(pool.submit(_work, first, pairs))
                if len(running) > 2 * processes:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


_worker: Checker | None = None


def _start(manifest: bytes) -> None:
    global _worker
    _worker = Checker(manifest)


def _work(first: int, pairs: list[Pair]) -> Replayed:
    assert _worker is not None
    return _worker.replay(first, pairs)


def _chunks(packet: PacketFile) -> Iterator[tuple[int, list[Pair]]]:
    """Rows with the artifacts that stand in their places, in chunks of both arms of some pairs."""
    artifacts = packet.elements("artifacts")
    first, size = 0, 0
    pairs: list[Pair] = []
    used = 0
    for sequence, row in enumerate(packet.elements("rows")):
        artifact = None
        if not _NO_ARTIFACT.match(row):
            artifact = next(artifacts, None)
            if artifact is None:
                raise PacketRefused("the artifact that the row names is missing", trial=sequence, field="row.artifact")
            used += 1
        pairs.append(Pair(row, artifact))
        size += len(row) + len(artifact or b"")
        if sequence % 2 and (len(pairs) >= _CHUNK_TRIALS or size >= _CHUNK_BYTES):
            yield first, pairs
            first, size, pairs = sequence + 1, 0, []
    if pairs:
        yield first, pairs
    if next(artifacts, None) is not None:
        raise PacketRefused("no row names this artifact", field=f"artifacts[{used}]")


_NO_ARTIFACT = re.compile(rb'\{"arm":"[a-z]*","artifact":null,')
"""How the row of a trial without one begins. A row in another form is refused when it is replayed."""


def _check_end(packet: PacketFile, totals: Totals, checker: Checker) -> None:
    for position, element in enumerate(packet.elements("incidents")):
        place = f"incidents[{position}]"
        try:
            incident = Incident.model_validate_json(element)
        except ValidationError as error:
            raise invalid(error, place) from error
        if canonical(incident.model_dump(mode="json")) != element:
            raise PacketRefused("is not in canonical form", field=place)
        if (incident.sequence is None) != (incident.attempt is None):
            raise PacketRefused("a trial and an attempt at it are named together or not at all", field=place)
        if incident.sequence is not None and incident.sequence >= checker.planned:
            raise PacketRefused("no such trial is planned", field=f"{place}.sequence")
    expected = totals.to_json()
    if canonical(expected) != packet.totals:
        try:
            found = orjson.loads(packet.totals)
        except orjson.JSONDecodeError as error:
            raise PacketRefused(f"is no JSON: {error}", field="totals") from error
        where = first_difference(expected, found, "totals")
        raise PacketRefused(against(expected, found, where, "totals"), field=where or "totals")
    # Last, since any other contradiction names its place.
    if packet.packet_hash != packet.found_packet_hash:
        raise PacketRefused(
            f"is {packet.packet_hash}, that of the file's bytes before it is {packet.found_packet_hash}",
            field="packet_hash",
        )


def _report(
    packet: PacketFile, manifest: Manifest, whole: Replayed, calls: Calls, *, anchored: bool, calibration_trusted: bool
) -> Report:
    totals = whole.totals if calibration_trusted or whole.trusted is None else whole.trusted
    judge = manifest.judge
    calibration = judge.calibration if judge is not None else None
    arms = totals.arms.values()
    missing, reused = sum(arm.missing for arm in arms), sum(arm.reused for arm in arms)
    pending = sum(arm.pending_messages for arm in arms)
    notes = []
    if not anchored:
        notes.append(
            "without --expect-sha256, what was registered or only observed may have been changed: see docs/packet.md"
        )
    if not calibration_trusted:
        counted = sum(
            arm.qualified_pass + arm.qualified_fail + arm.qualified_abstention for arm in whole.totals.arms.values()
        )
        notes.append(
            f"{counted} messages counted when they were judged and are unqualified here: you do not trust calibration "
            f"{calibration}; where you know that record, say so with --trust-calibration"
        )
    if missing:
        notes.append(f"{missing} of {whole.trials} trials are missing, and a missing trial is never a pass")
    if pending:
        notes.append(f"{pending} messages were not judged yet, and a pending judgment is never a pass")
    if reused:
        notes.append(f"{reused} trials were taken over from another matrix: the comparison is exploratory")
    if simulator_identity() != manifest.simulator.model_dump(mode="json"):
        notes.append("the installed simulator is not the registered one, and gives the same results")
    profile = "measured" if manifest.measurement_profile == "measured" else "synthetic (invented figures)"
    return Report(
        name=manifest.name,
        sha256=packet.sha256,
        manifest_hash=packet.manifest_hash,
        anchored=anchored,
        trials=whole.trials,
        replayed=whole.trials - missing,
        missing=missing,
        pairs=whole.pairs,
        pairs_in_order=whole.pairs_in_order,
        reused=reused,
        incidents=packet.counts["incidents"],
        profile=profile,
        judge=judge.configuration_hash() if judge is not None else None,
        calibration=calibration,
        calibration_trusted=None if calibration is None else calibration_trusted,
        judge_calls=cost_json(calls.cost),
        totals=totals.to_json(),
        notes=notes,
    )


def judgments(path: Path, report: Report) -> Iterator[tuple[str, Judgment | None, Manifest]]:
    """Of each trial with evidence in a packet that was replayed: its name, and the judgment where there is one.

    Raises:
        PacketRefused: the file is another one than was replayed.
        OSError: it cannot be read.
    """
    packet = PacketFile(path)
    check_expected(packet, report.sha256)
    manifest = _checker(packet.manifest).manifest
    artifacts = packet.elements("artifacts")
    for element in packet.elements("rows"):
        row = orjson.loads(element)
        if row["artifact"] is None:
            continue
        planned = at(row["sequence"], len(manifest.cases), len(ARMS))
        name = f"{manifest.conditions[planned.condition].name}/{row['case']}/{row['repetition']}"
        written = orjson.loads(next(artifacts))["judgments"]
        judgment = Judgment.model_validate_json(canonical(written[0])) if written else None
        yield name, judgment, manifest
