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
from grading.grading import delivery
from grading.intake import Quarantined, seal_journal, validate
from grading.projection import structural
from grading.store import Store, delivering, losing
from simulator.assignment import Isolation
from simulator.journal import locked
from simulator.journal_reading import JournaledAttempt, Journals
from simulator.recorder import software
from simulator.sealing import ATTEMPT_LOST, DISK_LIMIT
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
    *,
    isolation: Isolation = "process",
) -> Recovery:
    """Decides for each attempt by its journal. An attempt without one had not begun, as far as anybody can know.

    Args:
        place: where they ran, and
        isolation: how, for the envelopes of ledgers that are sealed here.
    """
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
            _lose(recovery, one, journal, grader, expectation(one.case_id), _envelope(one, place, isolation))
    return recovery


def overrun(
    one: Unanswered, journals: Journals, place: Mapping[str, str], *, isolation: Isolation, began: int
) -> Recovery:
    """Decides for an attempt whose agent was ended, with its recorder, for what it used of the disk.

    That is the agent's own doing: what it did until then is evidence, like any other limit's, and nothing is replaced.

    Args:
        began: microseconds; where its journal does not say when it began.
    """
    recovery = Recovery()
    journal = journals.attempts.get(one.attempt_id)
    if journal is not None and journal.ledger is not None:
        _deliver(recovery, one, journal.ledger)
        return recovery
    if journals.changed is not None:
        document = journal.document() if journal is not None else None
        recovery.quarantines.append(
            delivering.Quarantined(one.attempt_id, None, "ledger_malformed", journals.changed, document)
        )
        return recovery
    if journal is None:
        journal = JournaledAttempt(one.attempt_id, started=began)
    try:
        ledger = seal_journal(journal, dict(one.assignment), _envelope(one, place, isolation), DISK_LIMIT)
    except Quarantined as error:
        recovery.quarantines.append(
            delivering.Quarantined(one.attempt_id, None, "replay_mismatch", str(error), journal.document())
        )
    else:
        recovery.deliveries.append(delivery(one.attempt_id, None, ledger))
    return recovery


def _envelope(one: Unanswered, place: Mapping[str, str], isolation: Isolation) -> dict[str, Any]:
    return {
        "trial": one.trial,
        "attempt": one.number,
        "software": software(),
        "isolation": isolation,
        "place": dict(place),
    }


def _deliver(recovery: Recovery, one: Unanswered, document: bytes) -> None:
    try:
        ledger = validate(document, dict(one.assignment), one.trial, one.number)
    except Quarantined as error:
        recovery.quarantines.append(delivering.Quarantined(one.attempt_id, None, error.kind, str(error), document))
    else:
        recovery.deliveries.append(delivery(one.attempt_id, None, ledger))


def _lose(
    recovery: Recovery,
    one: Unanswered,
    journal: JournaledAttempt,
    grader: Grader,
    expectation: Any,
    envelope: dict[str, Any],
) -> None:
    consequential = load_world(one.assignment["world"]).consequential
    touched = any(entry["call"]["tool"] in consequential for entry in journal.calls)
    lost = losing.Lost(one.attempt_id, one.reason, touched, journal.document(), journal.started)
    if touched:
        try:
            ledger = seal_journal(journal, dict(one.assignment), envelope, ATTEMPT_LOST)
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
