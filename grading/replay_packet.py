"""Replay of a packet: every trial rebuilt, regraded and projected again, without agent, judge or network.

Nothing in a packet is believed that follows from something else in it. From the manifest alone come the plan, the
assignments, the expectations and the measurement profile; from a trial's recorded calls, through a fresh world, come
its results and final states; from those, the grade, and from all of it the row. What comes out must be the packet, byte
for byte. What nothing else contradicts (what was chosen, and what was only ever observed) is protected by the expected
hash of the whole file alone. Source: the order-resolution seed, katas 43 and 44.
"""

import multiprocessing
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from grading.arms import ARMS, NotAComparison, check_comparison
from grading.graders import UnknownGrader, load_grader
from grading.intake import Quarantined, validate
from grading.judge.judgment import Judgment
from grading.manifest import Manifest, assignment, trial_name
from grading.packet import (
    Artifact,
    Evidence,
    Incident,
    Row,
    RowContradiction,
    Rows,
    Totals,
    cost_json,
    distrusted,
    sealers_for,
)
from grading.packet_judgment import Calls, JudgmentChecker, UsedCall, used_calls
from grading.packet_reading import PacketFile, PacketRefused, check_manifest_hash, member_path
from grading.projection import structural
from grading.schedule import Planned, at, presented
from simulator.assignment import ISOLATIONS
from simulator.canonical import NotCanonicalizable, canonical, canonical_of_parsed, sha256
from simulator.replay import first_difference
from simulator.source import simulator_identity
from simulator.worlds import UnknownWorld, case_models

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


class Pair(NamedTuple):
    """A planned trial's row, and the artifact that stands where the row's must."""

    row: bytes
    artifact: bytes | None


class Checked(NamedTuple):
    """One trial that holds."""

    row: dict[str, Any]
    envelope: dict[str, Any] | None
    """Of its ledger, where there is evidence."""
    judgment: Judgment | None


@dataclass(slots=True)
class Replayed:
    """What some trials came to."""

    trials: int = 0
    totals: Totals = field(default_factory=Totals)
    pairs: int = 0
    """Cases' repetitions with evidence in both arms, and"""
    pairs_in_order: int = 0
    """those of them whose first arm had ended when the second began."""
    trusted: Totals | None = None
    """The totals for a reader who does not trust the calibration; None where that makes no difference."""
    reused: list[str] = field(default_factory=list)
    """The names of trials of other matrices."""
    calls: list[UsedCall] = field(default_factory=list)

    def merge(self, other: "Replayed") -> None:
        self.trials += other.trials
        self.totals.merge(other.totals)
        if self.trusted is not None and other.trusted is not None:
            self.trusted.merge(other.trusted)
        self.pairs += other.pairs
        self.pairs_in_order += other.pairs_in_order


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


class Checker:
    """Checks a packet's trials against its manifest, each by itself and in any order.

    Raises:
        PacketRefused: the manifest is none that a comparison can have been run from.
    """

    def __init__(self, document: bytes) -> None:
        try:
            self.manifest = Manifest.from_document(document)
            check_comparison(self.manifest)
            # Read once more as plain JSON, for a model fills in what is missing.
            written = orjson.loads(document)
            whole = orjson.loads(self.manifest.document())
            if (where := first_difference(whole, written, "manifest")) is not None:
                raise PacketRefused("is missing, or not in its registered form", field=where)
            if canonical(written) != document:
                raise PacketRefused("is not in canonical form", field="manifest")
        except ValidationError as error:
            raise _invalid(error, "manifest") from error
        except (NotAComparison, NotCanonicalizable, orjson.JSONDecodeError) as error:
            raise PacketRefused(str(error), field="manifest") from error
        self._manifest_hash = sha256(document)
        self._grader_version = _check_graders(self.manifest)
        self._grader, self._expectations = _check_cases(self.manifest)
        self._rows = Rows(self.manifest)
        self._judgments = JudgmentChecker(self.manifest)
        self._counts = self.manifest.judge is not None and self.manifest.judge.calibration is not None
        self._assignments: dict[tuple[int, int, str], dict[str, Any]] = {}
        self.planned = self.manifest.repetitions * len(self.manifest.cases) * len(ARMS)

    def replay(self, first: int, pairs: Iterable[Pair]) -> Replayed:
        """Replays consecutive trials from the planned place ``first`` on, which must be even: both arms of a pair."""
        found = Replayed(trusted=Totals() if self._counts else None)
        before: dict[str, Any] | None = None
        for sequence, pair in enumerate(pairs, first):
            checked = self.check(sequence, pair)
            row, envelope = checked.row, checked.envelope
            found.trials += 1
            found.totals.add(row)
            if found.trusted is not None:
                found.trusted.add(distrusted(row))
            if checked.judgment is not None:
                found.calls += used_calls(sequence, checked.judgment)
            if envelope is not None and row["reused"]:
                found.reused.append(envelope["trial"])
            if sequence % 2 and before is not None and envelope is not None:
                found.pairs += 1
                found.pairs_in_order += before["ended"] <= envelope["started"]
            before = envelope
        return found

    def check(self, sequence: int, pair: Pair) -> "Checked":
        """One trial that holds.

        Raises:
            PacketRefused: it does not.
        """
        if sequence >= self.planned:
            raise PacketRefused(f"only {self.planned} trials are planned", trial=sequence, field="row")
        planned = at(sequence, len(self.manifest.cases), len(ARMS))
        try:
            Row.model_validate_json(pair.row)
            row = orjson.loads(pair.row)
        except ValidationError as error:
            raise _invalid(error, "row", sequence) from error
        except orjson.JSONDecodeError as error:
            raise PacketRefused(f"is no JSON: {error}", trial=sequence, field="row") from error
        evidence = None if pair.artifact is None else self._evidence(planned, row, pair.artifact)
        try:
            pending = row["semantic"]["reason"] if row["semantic"] is not None else None
            expected = self._rows.row(planned, evidence, row["lost"], row["reason"], pending)
        except RowContradiction as error:
            raise PacketRefused(error.message, trial=sequence, field=error.place) from error
        if canonical_of_parsed(expected) != pair.row:
            where = first_difference(expected, row, "row")
            raise PacketRefused(_against(expected, row, where, "row"), trial=sequence, field=where or "row")
        if evidence is None:
            return Checked(row, None, None)
        return Checked(row, evidence.ledger["envelope"], evidence.judgment)

    def _evidence(self, planned: Planned, row: dict[str, Any], artifact: bytes) -> Evidence:
        sequence = planned.sequence
        members = _members(artifact, sequence)
        artifact_hash = sha256(artifact)
        if row["artifact"] != artifact_hash:
            raise PacketRefused(
                f"the row names {row['artifact']}, the artifact in its place is {artifact_hash}: "
                "artifacts stand in the order of the rows, each for one",
                trial=sequence,
                field="row.artifact",
            )
        try:
            written = canonical_of_parsed(members["grades"]), canonical_of_parsed(members["judgments"])
            beginning = b'{"grades":%b,"judgments":%b,"ledger":' % written
        except NotCanonicalizable as error:
            raise PacketRefused(str(error), trial=sequence, field="artifact") from error
        if not artifact.startswith(beginning) or not artifact.endswith(b"}"):
            raise PacketRefused("is not in canonical form", trial=sequence, field="artifact")
        content = self._check_ledger(planned, row["reused"], len(row["lost"]), artifact[len(beginning) : -1], members)
        grade = self._grader.grade(structural(content), self._expectations[planned.case]).to_json()
        grade["grader_version"] = self._grader_version
        # Text for text first: the values are walked through only to name the place.
        if not artifact.startswith(b'{"grades":%b,"judgments"' % canonical_of_parsed([grade])):
            where = first_difference([grade], members["grades"], "grades") or "grades"
            raise PacketRefused(_against([grade], members["grades"], where, "grades"), trial=sequence, field=where)
        judgment = self._judgments.check(sequence, members["judgments"], content, planned.case)
        return Evidence(artifact_hash, members["ledger"], grade, row["reused"], judgment)

    def _check_ledger(
        self, planned: Planned, reused: bool, lost: int, document: bytes, members: dict[str, Any]
    ) -> dict[str, Any]:
        """The content of a ledger that is of this planned trial and that its world gives again."""
        case, condition = self.manifest.cases[planned.case], self.manifest.conditions[planned.condition]
        own = trial_name(self._manifest_hash, condition.name, case.id, planned.repetition)
        name, number = own, lost + 1
        if reused:
            name, number = _claimed(members["ledger"])
            if name == own:
                message = "is this trial's own name, and the row says that another trial made the evidence"
                raise PacketRefused(message, trial=planned.sequence, field="ledger.envelope.trial")
        try:
            ledger = validate(document, self._assignment(planned), name, number, parsed=members["ledger"])
        except Quarantined as error:
            place, _, message = str(error).partition(": ")
            raise PacketRefused(
                message or place, trial=planned.sequence, field=f"ledger.{member_path(place)}"
            ) from error
        calls, allowed = len(ledger.content["calls"]), condition.limits.tool_calls
        if calls > allowed:
            message = f"{calls} calls were answered, {allowed} are allowed"
            raise PacketRefused(message, trial=planned.sequence, field="ledger.content.calls")
        envelope = members["ledger"]["envelope"]
        if ISOLATIONS.index(envelope["isolation"]) < ISOLATIONS.index(self.manifest.isolation):
            raise PacketRefused(
                f"is {envelope['isolation']}, and at least {self.manifest.isolation} was to be expected",
                trial=planned.sequence,
                field="ledger.envelope.isolation",
            )
        registered = self.manifest.simulator
        for field_name, found, wanted in (
            ("software.version", envelope["software"]["version"], (registered.version,)),
            ("software.source", envelope["software"]["source"], (registered.source,)),
            ("sealed_by", envelope["sealed_by"], sealers_for(ledger.content["error"])),
        ):
            if found not in wanted:
                raise PacketRefused(
                    f"is {found}, and {' or '.join(wanted)} was to be expected",
                    trial=planned.sequence,
                    field=f"ledger.envelope.{field_name}",
                )
        return ledger.content

    def _assignment(self, planned: Planned) -> dict[str, Any]:
        order = presented(self.manifest.presented_order, planned.repetition)
        key = (planned.case, planned.condition, order)
        if key not in self._assignments:
            if len(self._assignments) >= 10_000:
                self._assignments.clear()
            made = assignment(self.manifest, planned.case, planned.condition, planned.repetition)
            self._assignments[key] = made.model_dump(mode="json")
        return self._assignments[key]


def _check_graders(manifest: Manifest) -> str:
    """The version of the one grader that there is."""
    if [one.name for one in manifest.graders] != ["structural"]:
        raise PacketRefused("exactly the structural grader must be registered", field="manifest.graders")
    return manifest.graders[0].version


def _check_cases(manifest: Manifest) -> tuple[Any, list[Any]]:
    """The grader, and each case's expectation. The cases must be such as a cases file can hold."""
    try:
        world, grader = case_models(manifest.world), load_grader(manifest.world)
    except (UnknownWorld, UnknownGrader) as error:
        raise PacketRefused(str(error), field="manifest.world") from error
    expectations = []
    for position, case in enumerate(manifest.cases):
        place = f"manifest.cases[{position}]"
        for index, record in enumerate(case.records):
            _whole(world.record, record, f"{place}.records[{index}]")
        _whole(world.settings, case.world_settings, f"{place}.world_settings")
        expectation = _whole(grader.Expectation, case.expectation, f"{place}.expectation")
        problems = grader.check_case(case.records, case.customer_id, case.replies, expectation)
        if problems:
            path, _, message = problems[0].partition(": ")
            raise PacketRefused(message, field=f"{place}.{member_path(path)}")
        expectations.append(expectation)
    return grader, expectations


def _whole(model: type[BaseModel], value: dict[str, Any], place: str) -> BaseModel:
    """The value as its model, with no field left to a default: a registered case says everything."""
    try:
        found = model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error, place) from error
    if (where := first_difference(found.model_dump(mode="json"), value, place)) is not None:
        raise PacketRefused("is missing, or not in its registered form", field=where)
    return found


@lru_cache(maxsize=1)
def _checker(manifest: bytes) -> Checker:
    return Checker(manifest)


def _members(artifact: bytes, sequence: int) -> dict[str, Any]:
    try:
        members = orjson.loads(artifact)
    except orjson.JSONDecodeError as error:
        raise PacketRefused(f"is no JSON: {error}", trial=sequence, field="artifact") from error
    names = Artifact.model_fields.keys()
    for name in sorted(members.keys() ^ names):
        message = "is missing" if name in names else f"no such field is known; there are {', '.join(sorted(names))}"
        raise PacketRefused(message, trial=sequence, field=str(name))
    return dict(members)


def _claimed(ledger: Any) -> tuple[str, int]:
    """Which trial and attempt a ledger says it is of; anything where it says nothing, for it is refused anyhow."""
    envelope = ledger.get("envelope") if isinstance(ledger, dict) else None
    return (envelope.get("trial", ""), envelope.get("attempt", 0)) if isinstance(envelope, dict) else ("", 0)


def _invalid(error: ValidationError, place: str, trial: int | None = None) -> PacketRefused:
    first = error.errors(include_url=False, include_input=False)[0]
    inner = ".".join(str(part) for part in first["loc"])
    return PacketRefused(first["msg"], trial=trial, field=member_path(f"{place}.{inner}" if inner else place))


def _against(expected: Any, found: Any, where: str | None, root: str) -> str:
    if where is None:
        return "is not in canonical form"
    values = []
    for value in (found, expected):
        for name, position in re.findall(r"\.([^.\[\]]+)|\[([0-9]+)\]", where[len(root) :]):
            try:
                value = value[int(position) if position else name]
            except (KeyError, IndexError, TypeError):
                values.append("absent")
                break
        else:
            text = canonical(value).decode()
            values.append(text if len(text) <= 80 else text[:77] + "...")
    return f"is {values[0]}, and {values[1]} follows from the ledger and the manifest"


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
            raise _invalid(error, place) from error
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
        raise PacketRefused(_against(expected, found, where, "totals"), field=where or "totals")
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
