"""What became of one matrix's trials in another: reused, graded again, run again, and why."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from grading.manifest import Manifest, differences
from grading.planning import registered_manifest
from grading.store import Store, reading

Fate = Literal["reused", "regraded", "rerun", "added", "removed", "open", "missing"]
"""``reused``: taken over, and graded by the same grader. ``regraded``: taken over, and graded by another version.
``rerun``: run in both. ``added`` and ``removed``: only in the new and only in the old matrix. ``open`` and ``missing``:
planned in the new one, without a result."""

_Name = tuple[str, str, int]


@dataclass(slots=True)
class MatrixDiff:
    """The new matrix against the old one."""

    old: reading.Matrix
    new: reading.Matrix
    changes: list[str]
    """What the manifest changes."""
    fates: Counter[Fate] = field(default_factory=Counter)
    why: Counter[tuple[Fate, str]] = field(default_factory=Counter)
    """How many trials had that fate for that reason."""
    verdicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Of trials in both: condition, verdict before, verdict now; only where they differ."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "old": {"id": self.old.id, "matrix": self.old.name, "manifest": self.old.manifest_hash},
            "new": {"id": self.new.id, "matrix": self.new.name, "manifest": self.new.manifest_hash},
            "changes": self.changes,
            "trials": {fate: self.fates[fate] for fate in _ORDER},
            "why": [
                {"fate": fate, "reason": reason, "trials": count} for (fate, reason), count in sorted(self.why.items())
            ],
            "verdicts": [
                {"condition": condition, "before": before, "now": now, "trials": count}
                for (condition, before, now), count in sorted(self.verdicts.items())
            ],
        }

    def plain(self) -> str:
        old, new = (one.manifest_hash.removeprefix("sha256:")[:12] for one in (self.old, self.new))
        lines = [f"{self.new.name} {new} against {self.old.name} {old}"]
        lines += [f"  {change}" for change in self.changes] or ["  the same manifest"]
        lines.append("trials: " + ", ".join(f"{self.fates[fate]} {_WORDS[fate]}" for fate in _ORDER))
        lines += [f"  {count} {_WORDS[fate]}: {reason}" for (fate, reason), count in sorted(self.why.items())]
        lines.append("verdicts that differ: " + str(sum(self.verdicts.values()) or "none"))
        lines += [f"  {count} of {one}: {was} -> {now}" for (one, was, now), count in sorted(self.verdicts.items())]
        return "\n".join(lines) + "\n"


_WORDS: dict[Fate, str] = {
    "reused": "reused",
    "regraded": "re-graded",
    "rerun": "re-run",
    "added": "added",
    "removed": "removed",
    "open": "open",
    "missing": "missing",
}
_ORDER: tuple[Fate, ...] = tuple(_WORDS)


@dataclass(frozen=True, slots=True)
class _Side:
    """One trial of one side, without its ledger."""

    key: str
    state: str
    ran: int | None
    """The attempt that made the evidence, in whichever matrix."""
    reused: bool
    grader: str | None
    verdict: str | None


def matrix_diff(store: Store, old: reading.Matrix, new: reading.Matrix) -> MatrixDiff:
    """Compares trial by trial, each by its condition, case and repetition."""
    manifests = [registered_manifest(store, one.id) for one in (old, new)]
    found = MatrixDiff(old, new, differences(*manifests))
    before = dict(_sides(store, old))
    ran_before: dict[int | None, _Name] = {side.ran: name for name, side in before.items() if side.ran is not None}
    names = set(before)
    why = _Why(*manifests)
    for name, side in _sides(store, new):
        earlier = before.get(name)
        names.discard(name)
        fate, reason = _fate(name, side, before, ran_before, why)
        found.fates[fate] += 1
        if reason:
            found.why[fate, reason] += 1
        if earlier is not None and earlier.verdict != side.verdict:
            found.verdicts[name[0], earlier.verdict or "none", side.verdict or "none"] += 1
    found.fates["removed"] = len(names)
    return found


def _fate(
    name: _Name, side: _Side, before: dict[_Name, _Side], ran_before: dict[int | None, _Name], why: "_Why"
) -> tuple[Fate, str]:
    earlier = before.get(name)
    if side.ran is None:
        return ("missing" if side.state == "missing" else "open"), ""
    if side.reused:
        source = ran_before.get(side.ran)
        if source is None:
            return "reused", "taken over from a third matrix"
        if side.grader is not None and before[source].grader != side.grader:
            return "regraded", "another version of the grader"
        return "reused", "" if source == name else f"it stood for {source[0]} before"
    if earlier is None:
        return "added", ""
    if earlier.ran == side.ran:
        return "reused", "it is the same trial"
    if earlier.key == side.key:
        return "rerun", "nothing that it depends on changed, and it was not taken over"
    return "rerun", why.of(name)


class _Why:
    """What of a trial's key changed, by condition and case."""

    def __init__(self, old: Manifest, new: Manifest) -> None:
        self._old = ({one.name: one for one in old.conditions}, {one.id: one for one in old.cases})
        self._new = ({one.name: one for one in new.conditions}, {one.id: one for one in new.cases})
        self._both = []
        if old.simulator != new.simulator:
            self._both.append("the simulator changed")
        if old.presented_order != new.presented_order:
            self._both.append("the presented order changed")
        if old.world != new.world:
            self._both.append("the world changed")

    def of(self, name: _Name) -> str:
        found = list(self._both)
        condition, case, _ = name
        before, after = self._old[0][condition], self._new[0][condition]
        if before.agent.source != after.agent.source:
            found.append(f"the sources of {condition} changed")
        if before.agent.model_copy(update={"source": ""}) != after.agent.model_copy(update={"source": ""}):
            found.append(f"the settings of {condition} changed")
        if before.limits != after.limits:
            found.append(f"the limits of {condition} changed")
        unseen = {"expectation": {}, "labels": {}, "id": ""}
        if self._old[1][case].model_copy(update=unseen) != self._new[1][case].model_copy(update=unseen):
            found.append(f"case {case} changed")
        return ", ".join(found) or "its key changed"


def _sides(store: Store, matrix: reading.Matrix) -> Iterator[tuple[_Name, _Side]]:
    for trial in reading.trials(store, matrix.id, grades=True, batch=1000):
        grade = next((one for one in trial.grades if one.grader == "structural"), None)
        yield (
            (trial.condition, trial.case_id, trial.repetition),
            _Side(
                key=trial.trial_key,
                state=trial.state,
                ran=trial.reused_from or trial.evidence_attempt_id,
                reused=trial.reused_from is not None,
                grader=grade.version if grade is not None else None,
                verdict=grade.verdict if grade is not None else None,
            ),
        )
