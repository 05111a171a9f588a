"""The release policy: what an operator requires before a candidate passes, in a file of the operator's own.

Paths in it are relative to it. Nothing in it is taken from the matrix under test.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from pydantic import AfterValidator, ConfigDict, Field

from grading.cases import Identifier
from grading.file_error import FileError
from grading.instant import instant
from grading.manifest import Manifest
from grading.matrix_file import Confidence, DecimalText, Share, Slug
from grading.statistics.decision_rule import Rule
from grading.yaml_file import Document, read
from simulator.assignment import Isolation
from simulator.canonical import sha256
from simulator.ledger import Sha256
from simulator.model import WireModel

PACKAGED = Path(__file__).parent / "policies" / "packaged.yaml"
"""The policy of the packaged studies. Its two prerequisites are unmet on purpose."""

LARGEST_EVIDENCE = 256 * 2**20


def _moment(text: str) -> str:
    instant(text)
    return text


def _at_most_one(text: str) -> str:
    if not 0 <= Decimal(text) <= 1:
        raise ValueError("must be from 0 to 1")
    return text


Moment = Annotated[str, AfterValidator(_moment), Field(json_schema_extra={"format": "date-time"})]
"""ISO 8601 with a zone."""
FullShare = Annotated[DecimalText, AfterValidator(_at_most_one)]


class Prerequisite(WireModel):
    """Something that must hold beside the comparison, and the file that shows it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Identifier = Field(examples=["tool_boundary"])
    """What has to be shown."""
    evidence: str | None = None
    """The file that shows it; without one the prerequisite is unmet."""
    sha256: Sha256 | None = None
    """Of the file's bytes: integrity, not origin."""
    expires: Moment | None = None
    """From this instant on the evidence no longer counts."""


class TestReport(WireModel):
    """A JUnit report of the application's own tests."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    report: str = Field(examples=["junit.xml"])
    """The JUnit XML file."""
    sha256: Sha256
    """Of the file's bytes."""


class Policy(WireModel):
    """What a release needs."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""
    name: Slug = Field(examples=["refund-agent"])
    """What the policy is called."""
    not_before: Moment | None = None
    """Nothing is released before."""
    expires: Moment = Field(examples=["2027-01-01T00:00:00Z"])
    """From this instant on nothing is released, and a receipt of this policy has expired."""
    prerequisites: list[Prerequisite]
    """All of them must be met."""
    tests: TestReport | None = None
    """Without a report the tests count as failed."""
    least_coverage: FullShare = "1"
    """Share of the planned trials that must have a verdict."""
    margin: Share | None = None
    """Stricter than the registered margin, never looser."""
    confidence: Confidence | None = None
    """Higher than the registered confidence, never lower."""
    minimum_clusters: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    """More customers than registered, never fewer."""
    least_isolation: Isolation = "process"
    """What must have stood between agent and recorder: process, user or container."""
    least_qualified_messages: FullShare = "1"
    """Share of the planned trials whose message a qualified judge must have read."""
    components: dict[str, Sha256] = {}
    """Hashes that parts of the comparison must have, by the names that a receipt gives them."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What became of one file that the policy names."""

    name: str
    sha256: str | None
    """Of the bytes that were read; None where none were."""
    met: bool
    detail: str


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with everything read that it names."""

    policy: Policy
    sha256: str
    """Of the policy file's bytes."""
    prerequisites: tuple[Evidence, ...]
    tests: Evidence
    document: Document

    @property
    def expires(self) -> datetime:
        """When the first thing that a receipt rests on expires."""
        moments = [self.policy.expires, *(one.expires for one in self.policy.prerequisites if one.expires is not None)]
        return min(map(instant, moments))

    def rule(self, manifest: Manifest) -> Rule:
        """The registered rule, or the stricter one that the policy wants.

        Raises:
            FileError: the policy wants a looser one than was registered.
        """
        wanted = self.policy
        problems = []
        for name, own, registered, stricter in (
            ("margin", wanted.margin, manifest.margin, -1),
            ("confidence", wanted.confidence, manifest.confidence, 1),
            ("minimum_clusters", wanted.minimum_clusters, manifest.minimum_clusters, 1),
        ):
            if own is not None and stricter * (Decimal(own) - Decimal(registered)) < 0:
                message = f"{own} is looser than the registered {registered}: a policy may only be stricter"
                problems.append(self.document.error((name,), message))
        if problems:
            raise FileError.together(problems)
        return Rule(
            float(wanted.margin if wanted.margin is not None else manifest.margin),
            float(wanted.confidence if wanted.confidence is not None else manifest.confidence),
            wanted.minimum_clusters if wanted.minimum_clusters is not None else manifest.minimum_clusters,
        )


def load_policy(path: Path, now: datetime) -> LoadedPolicy:
    """A policy file, and the state of the files that it names.

    Raises:
        FileError: with every problem of the policy file itself. Evidence that does not hold is no such problem: it
            makes a prerequisite unmet or the tests failed, and the reason says why.
    """
    document = read(path)
    policy = document.load(Policy)
    problems = list(_problems(document, policy))
    if problems:
        raise FileError.together(problems)
    folder = path.parent
    return LoadedPolicy(
        policy=policy,
        sha256=sha256(path.read_bytes()),
        prerequisites=tuple(_prerequisite(one, folder, now) for one in policy.prerequisites),
        tests=_tests(policy.tests, folder),
        document=document,
    )


def _problems(document: Document, policy: Policy) -> Iterable[FileError]:
    names = [one.name for one in policy.prerequisites]
    for position, name in enumerate(names):
        if name in names[:position]:
            yield document.error(("prerequisites", position, "name"), f"'{name}' is named twice")
    if policy.not_before is not None and instant(policy.not_before) >= instant(policy.expires):
        yield document.error(("expires",), "must come after not_before")


def _prerequisite(wanted: Prerequisite, folder: Path, now: datetime) -> Evidence:
    if wanted.evidence is None:
        return Evidence(wanted.name, None, False, "no evidence is named")
    if wanted.sha256 is None:
        return Evidence(wanted.name, None, False, f"no hash is named for {wanted.evidence}")
    found, problem = _read(folder / wanted.evidence)
    if found is None:
        return Evidence(wanted.name, None, False, f"{wanted.evidence}: {problem}")
    digest = sha256(found)
    if digest != wanted.sha256:
        return Evidence(wanted.name, digest, False, f"{wanted.evidence} has another hash than the policy names")
    if wanted.expires is not None and now >= instant(wanted.expires):
        return Evidence(wanted.name, digest, False, f"{wanted.evidence} expired at {wanted.expires}")
    return Evidence(wanted.name, digest, True, f"{wanted.evidence} has the hash that the policy names")


def _tests(wanted: TestReport | None, folder: Path) -> Evidence:
    if wanted is None:
        return Evidence("tests", None, False, "no test report is named")
    found, problem = _read(folder / wanted.report)
    if found is None:
        return Evidence("tests", None, False, f"{wanted.report}: {problem}")
    digest = sha256(found)
    if digest != wanted.sha256:
        return Evidence("tests", digest, False, f"{wanted.report} has another hash than the policy names")
    met, detail = _junit(found)
    return Evidence("tests", digest, met, f"{wanted.report}: {detail}")


def _junit(document: bytes) -> tuple[bool, str]:
    try:
        root = ElementTree.fromstring(document)  # noqa: S314 - the operator's own file, by its hash
    except ElementTree.ParseError as error:
        return False, f"no JUnit XML: {error}"
    if root.tag not in ("testsuites", "testsuite"):
        return False, f"no JUnit XML: its root is {root.tag[:40]}"
    cases = list(root.iter("testcase"))
    bad = sum(any(child.tag in ("failure", "error") for child in case) for case in cases)
    # A suite that could not be collected may say so in its counts alone.
    counted = 0
    for suite in root.iter("testsuite"):
        for name in ("failures", "errors"):
            value = suite.get(name, "0")
            if not value.isdigit():
                return False, f"no JUnit XML: {name} is {value[:40]}"
            counted += int(value)
    skipped = sum(any(child.tag == "skipped" for child in case) for case in cases)
    ran = len(cases) - skipped
    if bad or counted:
        return False, f"{max(bad, counted)} of {len(cases)} tests failed"
    if not ran:
        return False, "no test ran"
    return True, f"{ran} tests passed" + (f", {skipped} skipped" if skipped else "")


def _read(path: Path) -> tuple[bytes | None, str]:
    try:
        if path.stat().st_size > LARGEST_EVIDENCE:
            return None, f"is larger than {LARGEST_EVIDENCE // 2**20} MiB"
        return path.read_bytes(), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
