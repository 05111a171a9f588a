"""Checking a packet's trials: each rebuilt from the manifest and its recorded calls, graded, projected, and compared.

From the manifest alone come the plan, the assignments, the expectations and the measurement profile; from a trial's
recorded calls, through a fresh world, its results and final states; from those, the grade, and from all of it the row.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from grading.arms import ARMS, NotAComparison, check_comparison
from grading.graders import UnknownGrader, load_grader
from grading.intake import Quarantined, validate
from grading.judge.judgment import Judgment
from grading.manifest import Manifest, assignment, trial_name
from grading.packet import Artifact, Evidence, Row, RowContradiction, Rows, Totals, distrusted, sealers_for
from grading.packet_judgment import JudgmentChecker, UsedCall, used_calls
from grading.packet_reading import PacketRefused, member_path
from grading.projection import structural
from grading.schedule import Planned, at, presented
from simulator.assignment import ISOLATIONS
from simulator.canonical import NotCanonicalizable, canonical, canonical_of_parsed, sha256
from simulator.replay import first_difference
from simulator.worlds import UnknownWorld, case_models


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
            raise invalid(error, "manifest") from error
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
            raise invalid(error, "row", sequence) from error
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
            raise PacketRefused(against(expected, row, where, "row"), trial=sequence, field=where or "row")
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
            raise PacketRefused(against([grade], members["grades"], where, "grades"), trial=sequence, field=where)
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
        raise invalid(error, place) from error
    if (where := first_difference(found.model_dump(mode="json"), value, place)) is not None:
        raise PacketRefused("is missing, or not in its registered form", field=where)
    return found


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


def invalid(error: ValidationError, place: str, trial: int | None = None) -> PacketRefused:
    first = error.errors(include_url=False, include_input=False)[0]
    inner = ".".join(str(part) for part in first["loc"])
    return PacketRefused(first["msg"], trial=trial, field=member_path(f"{place}.{inner}" if inner else place))


def against(expected: Any, found: Any, where: str | None, root: str) -> str:
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
