"""Whether a packet's judgment is one of its trial's execution, by the registered judge and calibration.

A judge is never asked again. What it said was only observed; everything around it follows from something else: what it
was shown from the execution, the verdict from the votes, the receipt from all of them. Source: the order-resolution
seed, native semantic extension.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from grading.cost import Cost, CostTotal, total
from grading.judge import POLICY_VERSIONS
from grading.judge.configuration import OpenAIConfiguration, RegisteredJudge
from grading.judge.judgment import Judgment, Receipt, Vote, binding
from grading.manifest import Manifest
from grading.packet_reading import PacketRefused, member_path
from grading.projection import semantic
from grading.redaction import Redactor
from simulator.canonical import canonical, canonical_of_parsed, sha256
from simulator.replay import first_difference


class UsedCall(NamedTuple):
    """A call of the judge, as one judgment uses it."""

    sequence: int
    call: bytes
    cached: bool
    answer: bytes
    """A digest of what was asked and answered, and"""
    cost: Cost
    """what it cost."""


class JudgmentChecker:
    """Checks judgments against a manifest.

    Raises:
        PacketRefused: the manifest's judge cannot judge its world.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._registered = manifest.judge
        self._redactor = Redactor(manifest.redaction)
        self._cases = [case.model_dump(mode="json") for case in manifest.cases]
        if manifest.judge is None:
            return
        wanted = POLICY_VERSIONS.get(manifest.world)
        if manifest.judge.policy_version != wanted:
            message = f"is {manifest.judge.policy_version}, the version of this world's policy is {wanted}"
            raise PacketRefused(message, field="manifest.judge.policy_version")
        literal = manifest.judge.configuration.type == "literal"
        if literal != (manifest.judge.connection is None):
            raise PacketRefused("does not belong to this judge", field="manifest.judge.connection")
        self._configuration = canonical(manifest.judge.configuration.model_dump(mode="json"))
        self._configuration_hash = sha256(self._configuration)

    def check(self, sequence: int, written: Any, content: Mapping[str, Any], case: int) -> Judgment | None:
        """The judgment among an artifact's members; None where there is none.

        Args:
            written: the member ``judgments``, parsed.
            content: of the trial's ledger, which was replayed.
            case: the registered case's position.

        Raises:
            PacketRefused: it is not a judgment of this execution.
        """
        if not isinstance(written, list):
            raise PacketRefused("is no list", trial=sequence, field="judgments")
        registered = self._registered
        if registered is None and written:
            raise PacketRefused(
                "there is a judgment, and the manifest registers no judge", trial=sequence, field="judgments"
            )
        if len(written) > 1:
            raise PacketRefused("a trial has one judgment at most", trial=sequence, field="judgments[1]")
        if registered is None or not written:
            return None
        judgment = _judgment(written[0], sequence)
        refusal = self._contradiction(registered, judgment, content, case)
        if refusal is not None:
            place, message = refusal
            raise PacketRefused(message, trial=sequence, field=f"judgments[0].{place}")
        return judgment

    def _contradiction(
        self, registered: RegisteredJudge, judgment: Judgment, content: Mapping[str, Any], case: int
    ) -> tuple[str, str] | None:
        """The first place that something else contradicts, and what is wrong there."""
        expected = (
            ("criterion", judgment.criterion, registered.configuration.criterion),
            ("configuration_hash", judgment.configuration_hash, self._configuration_hash),
            ("calibration_hash", judgment.calibration_hash, registered.calibration),
        )
        for place, found, wanted in expected:
            if found != wanted:
                return place, f"is {found}, the manifest registers {wanted}"
        if judgment.refused:
            return None
        shown = canonical_of_parsed(self._redactor.value(semantic(dict(content), registered.policy_version)))
        if judgment.request_hash != sha256(shown):
            return "request_hash", f"is {judgment.request_hash}, the projection of this execution is {sha256(shown)}"
        return (
            self._votes(registered, judgment, len(shown))
            or _timing(judgment)
            or (
                None
                if judgment.receipt is None
                else self._receipt(registered, judgment, judgment.receipt, content, case)
            )
        )

    def _votes(self, registered: RegisteredJudge, judgment: Judgment, shown: int) -> tuple[str, str] | None:
        configuration = registered.configuration
        wanted = configuration.votes if isinstance(configuration, OpenAIConfiguration) else 1
        if len(judgment.votes) != wanted:
            return "votes", f"there are {len(judgment.votes)}, the registered judge gives {wanted}"
        for vote in judgment.votes:
            place = f"votes[{vote.index}]"
            called = isinstance(configuration, OpenAIConfiguration) and shown <= configuration.longest_request
            if (vote.call is not None) != called:
                return f"{place}.call", "a call is named exactly where the judge had to be called"
            if vote.call is None:
                nobody = {"cached": False, "returned_model": None, "input_tokens": None, "output_tokens": None}
                for name, value in nobody.items():
                    if getattr(vote, name) != value:
                        return f"{place}.{name}", "nobody was called, so nobody can have said this"
                if isinstance(configuration, OpenAIConfiguration):
                    if vote.error != "TooLong":
                        return f"{place}.error", "is TooLong for evidence that was not sent"
                    state = "not_dispatched"
                else:
                    if vote.error is not None:
                        return f"{place}.error", "the literal judge understands everything that it is shown"
                    state = "unknown"
                if vote.cost.state != state:
                    return f"{place}.cost.state", f"is {state} where nobody was called"
            if judgment.receipt is not None and not _by(configuration, vote):
                return f"{place}.returned_model", "another model answered than the registered one, and its word counts"
        return None

    def _receipt(
        self, registered: RegisteredJudge, judgment: Judgment, receipt: Receipt, content: Mapping[str, Any], case: int
    ) -> tuple[str, str] | None:
        """What the judgment itself does not hold; the model has compared the rest."""
        if registered.calibration is None:
            return "receipt", "no calibration is registered, so no judgment can count"
        bound = binding(dict(content), self._cases[case], registered.policy_version)
        wanted = {
            "judge_version": registered.configuration.version,
            **bound.model_dump(),
            "started": min(vote.started for vote in judgment.votes),
            "ended": max(vote.ended for vote in judgment.votes),
        }
        for name, value in wanted.items():
            if getattr(receipt, name) != value:
                return (
                    f"receipt.{name}",
                    f"is {getattr(receipt, name)}, and {value} follows from judgment and execution",
                )
        return None


def used_calls(sequence: int, judgment: Judgment) -> list[UsedCall]:
    """The calls that a judgment rests on."""
    used = []
    for vote in judgment.votes:
        if vote.call is not None:
            answer = {**vote.model_dump(mode="json"), "cached": None, "request": judgment.request_hash}
            digest = hashlib.sha256(canonical(answer)).digest()[:16]
            used.append(UsedCall(sequence, bytes.fromhex(vote.call), vote.cached, digest, vote.cost.cost()))
    return used


class Calls:
    """All calls of a packet: each was made once, for one judgment at most, and answered one thing.

    Holds some 200 bytes for each call, the one thing in a replay that grows with a packet beside reused evidence.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, bool]] = {}
        self.cost: CostTotal = total([])
        """Of each call once, however many trials carry it."""

    def add(self, used: UsedCall) -> None:
        """Raises PacketRefused where the call is known for another answer, or was made for another judgment."""
        known = self._known.get(used.call)
        if known is None:
            self._known[used.call] = (used.answer, not used.cached)
            one = total([used.cost])
            self.cost = CostTotal(
                self.cost.known_subtotal + one.known_subtotal,
                self.cost.known + one.known,
                self.cost.unknown + one.unknown,
                self.cost.not_dispatched + one.not_dispatched,
            )
            return
        answer, made = known
        if answer != used.answer:
            message = f"the call {used.call.hex()} is told with another request or answer by an earlier trial"
            raise PacketRefused(message, trial=used.sequence, field="judgments[0].votes")
        if made and not used.cached:
            message = f"the call {used.call.hex()} was made for an earlier trial already, and is not marked as cached"
            raise PacketRefused(message, trial=used.sequence, field="judgments[0].votes")
        self._known[used.call] = (answer, made or not used.cached)


def _judgment(written: Any, sequence: int) -> Judgment:
    text = canonical_of_parsed(written)
    try:
        judgment = Judgment.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        inner = ".".join(str(part) for part in first["loc"])
        place = member_path(f"judgments.0.{inner}" if inner else "judgments.0")
        raise PacketRefused(first["msg"].removeprefix("Value error, "), trial=sequence, field=place) from error
    if (document := judgment.document()) != text:
        where = first_difference(orjson.loads(document), written, "judgments[0]")
        raise PacketRefused("is missing, or not in its form", trial=sequence, field=where or "judgments[0]")
    return judgment


def _timing(judgment: Judgment) -> tuple[str, str] | None:
    """Qualification was asked before every call that was made for this judgment, and again after every answer."""
    assert judgment.checked_after is not None
    if judgment.checked_before > judgment.checked_after:
        return "checked_after", "is before checked_before"
    for vote in judgment.votes:
        place = f"votes[{vote.index}]"
        if vote.started > vote.ended:
            return f"{place}.ended", "is before it started"
        if vote.ended > judgment.checked_after:
            return f"{place}.ended", "is after the check that follows it"
        if vote.call is not None and not vote.cached and vote.started < judgment.checked_before:
            return f"{place}.started", "is before the check that had to come first"
    return None


def _by(configuration: Any, vote: Vote) -> bool:
    """Whether the registered judge gave a vote. Where no answer could be read, it is the one that was asked."""
    if not isinstance(configuration, OpenAIConfiguration) or (vote.returned_model is None and vote.error is not None):
        return True
    return vote.returned_model == configuration.returned_model
