"""Ledgers that are sealed from a journal: who may have done so, and what they come to."""

from typing import Any

import pytest
import sealed_ledger

from grading.graders.orders import Expectation, grade
from grading.intake import seal_journal, validate
from grading.packet import sealers_for
from grading.projection import structural
from simulator.journal_reading import JournaledAttempt
from simulator.sealing import ATTEMPT_LOST, DISK_LIMIT

EXPECTED = Expectation(order="order-a", clarifications=1)


def sealed(error: str, *, told: bool) -> dict[str, Any]:
    content, envelope = sealed_ledger.parts()
    identity = {name: envelope[name] for name in ("trial", "attempt", "software", "isolation", "place")}
    calls = [
        {"call": call, **times} for call, times in zip(content["calls"], envelope["calls"], strict=True)
    ] if told else []  # fmt: skip
    journal = JournaledAttempt(5, "sha256:" + "0" * 64, envelope["started"], calls)
    ledger = seal_journal(journal, sealed_ledger.assignment(), identity, error)
    assert validate(ledger.document, sealed_ledger.assignment(), identity["trial"], identity["attempt"]) == ledger
    return ledger.content


@pytest.mark.parametrize("told", [True, False])
def test_an_overrun_is_graded_like_any_other_limits(told: bool) -> None:
    content = sealed(DISK_LIMIT, told=told)
    given = grade(structural(content), EXPECTED)
    assert given.verdict == "failed"
    assert given.observed("budget") == "DiskLimit"
    assert given.observed("outcome") == ({"order-a": 1} if told else {})
    # Unlike an attempt that was lost, it ended: what it had not done or said is held against it.
    assert {"budget", "claim"} <= set(given.failed_checks)
    assert ("outcome" in given.failed_checks) is not told
    assert len(content["calls"]) == (8 if told else 0)


def test_a_lost_attempt_is_not_judged_by_what_it_had_no_time_for() -> None:
    given = grade(structural(sealed(ATTEMPT_LOST, told=False)), EXPECTED)
    assert given.failed_checks == ["execution_error"]


def test_who_may_have_sealed_a_ledger_follows_from_its_error() -> None:
    assert sealers_for(None) == ("recorder",)
    assert sealers_for("ValueError") == ("recorder",)
    assert sealers_for("TimeLimit") == ("recorder",)
    assert sealers_for(ATTEMPT_LOST) == ("journal",)
    assert sealers_for(DISK_LIMIT) == ("recorder", "journal")
