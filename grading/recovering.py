"""What becomes of attempts that end without delivering: their journals are read before their trials run again.

A new attempt must not wash away what the agent did. An attempt whose journal holds a sealed ledger delivers it now; one
whose journal already shows a violation becomes its trial's evidence; only otherwise is the attempt lost and replaced.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.graders import Grader
from grading.intake import Quarantined, ValidLedger, seal_lost, validate
from grading.projection import structural
from grading.store import Store, delivering, losing
from simulator.journal import JournaledAttempt, Journals, locked
from simulator.recorder import software
from simulator.worlds import load_world

_LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An attempt of which nothing more will come."""

    attempt_id: int
    number: int
    trial: str
    """The trial's name in its ledgers."""
    case_id: str
    assignment: Mapping[str, Any]
    reason: str
    """What it is lost to, if it had begun."""
    begun: bool = False
    """Whether it is known that it had, though its journal may not say so yet."""


@dataclass(slots=True)
class Recovery:
    """What the journals said, to be written to the store in the order of these lists."""

    deliveries: list[delivering.Delivery] = field(default_factory=list)
    sealings: list[losing.Sealed] = field(default_factory=list)
    quarantines: list[delivering.Quarantined] = field(default_factory=list)
    losses: list[losing.Lost] = field(default_factory=list)

    def write(self, store: Store) -> None:
        if self.deliveries:
            delivering.deliver(store, self.deliveries)
        if self.sealings:
            losing.seal(store, self.sealings)
        if self.quarantines:
            delivering.quarantine(store, self.quarantines)
        if self.losses:
            losing.lose(store, self.losses)


def journaled(paths: Iterable[Path]) -> Journals:
    """The journals of workers that are gone or about to go: waits for each to let go of its own.

    One that does not, because its runner is alive and only let its lease expire, is read as far as it has come.
    """
    found = Journals()
    for path in paths:
        # Another runner that recovers the same attempts removes their journals once it has done so.
        with suppress(FileNotFoundError), locked(path, seconds=_LOCK_SECONDS):
            found.read(path)
    return found


def recover(
    unanswered: Iterable[Unanswered],
    journals: Journals,
    grader: Grader,
    expectation: Callable[[str], Any],
    place: Mapping[str, str],
) -> Recovery:
    """Decides for each attempt by its journal. An attempt without one had not begun, as far as anybody can know."""
    recovery = Recovery()
    for one in unanswered:
        journal = journals.attempts.get(one.attempt_id)
        if journal is not None and journal.ledger is not None:
            _deliver(recovery, one, journal.ledger)
        elif journals.changed is not None:
            document = journal.document() if journal is not None else None
            recovery.quarantines.append(
                delivering.Quarantined(one.attempt_id, None, "ledger_malformed", journals.changed, document)
            )
        elif journal is None:
            reason = one.reason if one.begun else "not_started"
            recovery.losses.append(losing.Lost(one.attempt_id, reason))
        else:
            _lose(recovery, one, journal, grader, expectation(one.case_id), place)
    return recovery


def _deliver(recovery: Recovery, one: Unanswered, document: bytes) -> None:
    try:
        ledger = validate(document, dict(one.assignment), one.trial, one.number)
    except Quarantined as error:
        recovery.quarantines.append(delivering.Quarantined(one.attempt_id, None, error.kind, str(error), document))
    else:
        recovery.deliveries.append(delivery(one.attempt_id, None, ledger))


def delivery(attempt_id: int, secret: str | None, ledger: ValidLedger) -> delivering.Delivery:
    return delivering.Delivery(
        attempt_id, secret, ledger.content_hash, ledger.ledger_hash, ledger.document, ledger.started, ledger.ended
    )


def _lose(
    recovery: Recovery,
    one: Unanswered,
    journal: JournaledAttempt,
    grader: Grader,
    expectation: Any,
    place: Mapping[str, str],
) -> None:
    consequential = load_world(one.assignment["world"]).consequential
    touched = any(entry["call"]["tool"] in consequential for entry in journal.calls)
    lost = losing.Lost(one.attempt_id, one.reason, touched, journal.document(), journal.started)
    if touched:
        envelope = {
            "trial": one.trial,
            "attempt": one.number,
            "software": software(),
            "isolation": "process",
            "place": dict(place),
        }
        try:
            ledger = seal_lost(journal, dict(one.assignment), envelope)
        except Quarantined as error:
            recovery.quarantines.append(
                delivering.Quarantined(one.attempt_id, None, "replay_mismatch", str(error), journal.document())
            )
            return
        if grader.violation(structural(ledger.content), expectation):
            recovery.sealings.append(
                losing.Sealed(
                    one.attempt_id,
                    one.reason,
                    ledger.content_hash,
                    ledger.ledger_hash,
                    ledger.document,
                    journal.document(),
                    ledger.started,
                    ledger.ended,
                )
            )
            return
    recovery.losses.append(lost)
