"""The release decision: one comparison, the operator's policy and clock, one receipt with every reason.

The first of these that holds decides: a prerequisite is unmet (locked, block); the tests failed (buildable, block); a
check of the candidate or the comparison failed (evidence_ready, block); the comparison is inconclusive (evidence_ready,
hold); otherwise the candidate passes the lab, which authorizes nothing beyond it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from grading.comparison import MatrixComparison, NotComparable
from grading.instant import instant
from grading.policy import LoadedPolicy, Moment
from grading.redaction import Redactor
from grading.slices import Slice, slice_up
from grading.statistics import paired
from grading.statistics.decision_rule import Verdict
from simulator.assignment import ISOLATIONS
from simulator.canonical import canonical, canonical_hash, sha256
from simulator.ledger import Sha256
from simulator.model import WireModel
from simulator.source import source_hash

Level = Literal["locked", "buildable", "evidence_ready", "expired"]
Action = Literal["block", "hold", "lab_pass"]

EXIT_STATUS = {"lab_pass": 0, "hold": 10, "block": 11}
EXPIRED = 12


class Reason(WireModel):
    """One thing that was looked at."""

    part: Literal["time", "prerequisite", "tests", "candidate", "comparison", "component"]
    name: str
    met: bool | None
    """None where it is inconclusive: neither met nor failed."""
    detail: str


class Result(WireModel):
    """What the comparison said by the policy's rule, of the whole or of a required slice."""

    name: str
    verdict: Verdict | None
    """None where no comparison could be made."""
    customers: int
    pairs: int
    complete_pairs: int
    difference: float | None
    lower: float | None
    upper: float | None


class Receipt(WireModel):
    """The decision, with all that it rests on. A hash shows integrity, not origin."""

    version: Literal[1] = 1
    comparison: str
    view: Literal["structural", "joint"]
    """What counted as a pass."""
    policy: str
    baseline: str
    candidate: str
    level: Level
    action: Action
    authority: Literal["none", "lab_only"]
    reasons: list[Reason]
    """Everything that was looked at, in the order in which it decides; the unmet ones are why."""
    margin: float
    confidence: float
    minimum_clusters: int
    results: list[Result]
    """The whole first, then each required slice."""
    issued: Moment
    not_before: Moment | None
    expires: Moment
    """The first instant at which something that this rests on has expired."""
    components: dict[str, Sha256]
    """Everything it rests on. When one changes, the receipt has expired."""
    receipt_hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Of everything above, as canonical JSON."""

    def document(self) -> bytes:
        return canonical(self.model_dump(mode="json"))

    @property
    def exit_status(self) -> int:
        return EXPIRED if self.level == "expired" else EXIT_STATUS[self.action]


class BadReceipt(ValueError):  # noqa: N818 - reads as what is wrong
    """An earlier receipt that is none, or was changed."""


def decide(found: MatrixComparison, loaded: LoadedPolicy, now: datetime, earlier: Receipt | None = None) -> Receipt:
    """The receipt for a comparison under a policy, at a time.

    Args:
        found: a comparison of exactly two arms.
        now: the operator's clock.
        earlier: a receipt to look at again: it has expired where a component is another one now.

    Raises:
        NotComparable: the matrix is no comparison.
        FileError: the policy is looser than the manifest.
    """
    if len(found.candidates) != 1 or found.baseline != found.manifest.baseline:
        raise NotComparable(
            f"{found.matrix.name} is no comparison: a decision takes two conditions, one of them registered as baseline"
        )
    if found.manifest.repetitions % 2:
        raise NotComparable(f"{found.matrix.name} is no comparison: its number of repetitions is odd")
    policy = loaded.policy
    rule = loaded.rule(found.manifest)
    (candidate,) = found.candidates
    eligible = candidate.description.eligible_pairs == candidate.description.pairs
    whole = paired.compare(candidate.pairs, rule) if eligible else None
    required: list[Slice] = []
    if found.manifest.slice_plan is not None:
        plan = found.manifest.slice_plan
        sliced = slice_up(plan, candidate.pairs, rule, registered_plan=plan, view=found.view)
        redactor = Redactor(found.manifest.redaction)
        required = [replace(one, name=redactor.text(one.name)) for one in sliced.slices if one.required]
    components = components_of(found, loaded)
    times = _times(loaded, now)
    changed = _changed(components, policy.components, "the policy names")
    if earlier is not None:
        check_receipt(earlier)
        changed += _changed(components, earlier.components, "the earlier receipt names")
        if now >= instant(earlier.expires):
            detail = f"the earlier receipt expired at {earlier.expires}"
            times.append(Reason(part="time", name="receipt", met=False, detail=detail))
    prerequisites = [
        Reason(part="prerequisite", name=one.name, met=one.met, detail=one.detail) for one in loaded.prerequisites
    ]
    tests = Reason(part="tests", name="tests", met=loaded.tests.met, detail=loaded.tests.detail)
    checks = _candidate_checks(found, loaded)
    comparisons = [
        _compared("comparison", whole),
        *(_compared(f"slice {one.name}", one.comparison) for one in required),
        *(
            Reason(part="comparison", name="exploratory", met=None, detail=f"for exploring only: {why}")
            for why in found.exploratory
        ),
    ]
    expired = bool(changed) or any(one.met is False and one.name != "not_before" for one in times)
    early = any(one.met is False and one.name == "not_before" for one in times)
    level, action = _verdict(expired, early, prerequisites, tests, [*checks, *comparisons])
    body = {
        "version": 1,
        "comparison": found.matrix.name,
        "view": found.view,
        "policy": policy.name,
        "baseline": found.baseline,
        "candidate": candidate.candidate,
        "level": level,
        "action": action,
        "authority": "lab_only" if action == "lab_pass" else "none",
        "reasons": [
            one.model_dump(mode="json") for one in [*times, *changed, *prerequisites, tests, *checks, *comparisons]
        ],
        "margin": rule.margin,
        "confidence": rule.confidence,
        "minimum_clusters": rule.minimum_clusters,
        "results": [
            _result("comparison", whole, candidate.description.pairs).model_dump(mode="json"),
            *(_result(one.name, one.comparison, one.description.pairs).model_dump(mode="json") for one in required),
        ],
        "issued": _written(now),
        "not_before": policy.not_before,
        "expires": _written(loaded.expires),
        "components": components,
    }
    return Receipt.model_validate({**body, "receipt_hash": canonical_hash(body)})


def components_of(found: MatrixComparison, loaded: LoadedPolicy) -> dict[str, str]:
    """The hash of everything that a decision rests on, by name."""
    manifest = found.manifest
    named = {
        "policy": loaded.sha256,
        "manifest": found.matrix.manifest_hash,
        "simulator": manifest.simulator.source,
        "cases": canonical_hash([case.model_dump(mode="json") for case in manifest.cases]),
        "statistics": source_hash("grading.statistics"),
        "decision": sha256(
            "".join(source_hash(f"grading.{one}") for one in ("comparison", "decision", "semantic")).encode()
        ),
        "evidence": canonical_hash([[one.sequence, one.ledger_hash, one.verdict] for one in found.facts]),
    }
    for condition in manifest.conditions:
        named[f"agent {condition.name}"] = condition.agent.source
    versions = sorted({one.grader_version for one in found.facts if one.grader_version is not None})
    named["graders"] = canonical_hash(versions)
    if manifest.judge is not None:
        named["judge"] = canonical_hash(manifest.model_dump(mode="json")["judge"])
        named["judgments"] = canonical_hash([[one.sequence, one.message, one.message_reason] for one in found.facts])
    if manifest.slice_plan is not None:
        named["slice_plan"] = canonical_hash(manifest.slice_plan.model_dump(mode="json"))
    for one in loaded.prerequisites:
        if one.sha256 is not None:
            named[f"prerequisite {one.name}"] = one.sha256
    if loaded.tests.sha256 is not None:
        named["tests"] = loaded.tests.sha256
    return named


def check_receipt(receipt: Receipt) -> None:
    """Raises BadReceipt where a receipt is not what its own hash says."""
    body = receipt.model_dump(mode="json")
    if body.pop("receipt_hash") != canonical_hash(body):
        raise BadReceipt("the earlier receipt was changed: it does not have its own hash")


def _verdict(
    expired: bool, early: bool, prerequisites: Sequence[Reason], tests: Reason, checks: Sequence[Reason]
) -> tuple[Level, Action]:
    if expired:
        return "expired", "block"
    if early or not all(one.met for one in prerequisites):
        return "locked", "block"
    if not tests.met:
        return "buildable", "block"
    if any(one.met is False for one in checks):
        return "evidence_ready", "block"
    if any(one.met is None for one in checks):
        return "evidence_ready", "hold"
    return "evidence_ready", "lab_pass"


def _times(loaded: LoadedPolicy, now: datetime) -> list[Reason]:
    policy = loaded.policy
    found = []
    if policy.not_before is not None:
        early = now < instant(policy.not_before)
        detail = f"it is {_written(now)}, the policy begins {policy.not_before}"
        found.append(Reason(part="time", name="not_before", met=not early, detail=detail))
    late = now >= instant(policy.expires)
    detail = f"it is {_written(now)}, the policy ends {policy.expires}"
    found.append(Reason(part="time", name="expires", met=not late, detail=detail))
    return found


def _changed(now: dict[str, str], before: dict[str, str], where: str) -> list[Reason]:
    return [
        Reason(
            part="component",
            name=name,
            met=False,
            detail=f"{where} {value}, it is {now.get(name, 'absent')}",
        )
        for name, value in before.items()
        if now.get(name) != value
    ]


def _candidate_checks(found: MatrixComparison, loaded: LoadedPolicy) -> list[Reason]:
    policy = loaded.policy
    qualified = sum(arm.qualified_messages for arm in found.arms)
    isolated = ISOLATIONS.index(found.manifest.isolation) >= ISOLATIONS.index(policy.least_isolation)
    incidents = ", ".join(f"{count} {kind}" for kind, count in found.incidents.items())
    checks = (
        (
            "coverage",
            _at_least(found.observed, found.planned, policy.least_coverage),
            f"{found.observed} of {found.planned} trials have a verdict, the least share is {policy.least_coverage}",
        ),
        ("isolation", isolated, f"{found.manifest.isolation}, the least is {policy.least_isolation}"),
        (
            "qualified_messages",
            _at_least(qualified, found.planned, policy.least_qualified_messages),
            f"{qualified} of {found.planned} messages were read by a qualified judge, the least share is "
            f"{policy.least_qualified_messages}",
        ),
        ("incidents", not found.incidents, f"open incidents: {incidents or 'none'}"),
    )
    return [Reason(part="candidate", name=name, met=met, detail=detail) for name, met, detail in checks]


def _at_least(count: int, planned: int, share: str) -> bool:
    return count >= Decimal(share) * planned


def _compared(name: str, found: paired.Comparison | None) -> Reason:
    if found is None:
        detail = "no comparison: it needs two customers, and all pairs eligible"
        return Reason(part="comparison", name=name, met=None, detail=detail)
    met = True if found.non_inferior else False if found.verdict == "failed" else None
    if found.lower is None or found.upper is None:
        detail = f"{found.verdict}: {found.clusters} customers, the least is {found.rule.minimum_clusters}"
    else:
        detail = (
            f"{found.verdict}: difference {found.difference:+.4f}, one-sided bounds {found.lower:+.4f} and "
            f"{found.upper:+.4f}, margin {found.rule.margin:g}"
        )
    return Reason(part="comparison", name=name, met=met, detail=detail)


def _result(name: str, found: paired.Comparison | None, pairs: int) -> Result:
    if found is None:
        return Result(
            name=name, verdict=None, customers=0, pairs=pairs, complete_pairs=0, difference=None, lower=None, upper=None
        )
    return Result(
        name=name,
        verdict=found.verdict,
        customers=found.clusters,
        pairs=found.pairs,
        complete_pairs=found.complete_pairs,
        difference=found.difference,
        lower=found.lower,
        upper=found.upper,
    )


def _written(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
