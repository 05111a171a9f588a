"""Reading a store, in short transactions and in batches: memory does not grow with the number of trials."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import batches
from grading.store.errors import NotFound
from grading.store.grades import Grade
from grading.store.opening import Store
from grading.store.owners import dead_owners, may_be_taken
from grading.store.tables import (
    AttemptState,
    Budget,
    CellState,
    MatrixState,
    PublicationState,
    TrialState,
    assignment,
    attempt,
    cell,
    grade,
    incident,
    journal,
    ledger,
    literal_state,
    matrix,
    owner,
    publication,
    trial,
)


@dataclass(frozen=True, slots=True)
class Matrix:
    id: int
    manifest_hash: str
    name: str
    state: MatrixState
    created: int


@dataclass(frozen=True, slots=True)
class Cell:
    id: int
    case_id: str
    condition: str
    case_position: int
    condition_position: int
    state: CellState
    reason: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    id: int
    matrix_id: int
    cell_id: int
    case_id: str
    condition: str
    repetition: int
    sequence: int
    trial_key: str
    assignment_hash: str
    state: TrialState
    attempt: int
    evidence_attempt_id: int | None
    reused_from: int | None
    """The attempt of another matrix whose ledger is this trial's evidence."""
    started: int | None
    """Of the evidence's attempt."""
    ended: int | None
    content_hash: str | None = None
    ledger_hash: str | None = None
    ledger: bytes | None = None
    grades: tuple[Grade, ...] = ()
    """Each grader's latest."""


@dataclass(frozen=True, slots=True)
class Attempt:
    id: int
    trial_id: int
    number: int
    state: AttemptState
    reason: str | None
    budget: Budget | None
    owner: str | None
    lease_expires: int | None
    leased_at: int
    started: int | None
    ended: int | None
    after_consequential_call: bool
    reused_from: int | None


@dataclass(frozen=True, slots=True)
class UnusedAttempt:
    """An attempt that was lost or fenced and is no trial's evidence."""

    sequence: int
    """The planned place of its trial."""
    number: int
    state: AttemptState
    reason: str | None
    after_consequential_call: bool


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """Where an attempt belongs: its trial's planned place, and its number."""

    sequence: int
    number: int


@dataclass(frozen=True, slots=True)
class Incident:
    id: int
    matrix_id: int | None
    attempt_id: int | None
    kind: str
    detail: str
    created: int
    document: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Publication:
    matrix_id: int
    target: str
    state: PublicationState
    changes: int
    owner: str | None
    lease_expires: int | None
    detail: str | None


_MATRIX = (matrix.c.id, matrix.c.manifest_hash, matrix.c.name, matrix.c.state, matrix.c.created)


def matrices(store: Store) -> list[Matrix]:
    """Every matrix, the oldest first."""
    with store.reading() as connection:
        return [Matrix(*row) for row in connection.execute(sa.select(*_MATRIX).order_by(matrix.c.id))]


def find_matrix(store: Store, word: str | int) -> Matrix:
    """A matrix by its id, its name (the latest of that name) or the beginning of its manifest's hash.

    Raises:
        NotFound: for none of them, or a beginning that several hashes share.
    """
    text = str(word)
    with store.reading() as connection:
        if text.isascii() and text.isdigit() and len(text) < 16:
            by_id = connection.execute(sa.select(*_MATRIX).where(matrix.c.id == int(text))).first()
            if by_id is not None:
                return Matrix(*by_id)
        named = sa.select(*_MATRIX).where(matrix.c.name == text).order_by(matrix.c.id.desc()).limit(1)
        by_name = connection.execute(named).first()
        if by_name is not None:
            return Matrix(*by_name)
        digits = text.removeprefix("sha256:")
        if digits and set(digits) <= set("0123456789abcdef"):
            beginning = matrix.c.manifest_hash.startswith(f"sha256:{digits}", autoescape=True)
            rows = connection.execute(sa.select(*_MATRIX).where(beginning).limit(2)).all()
            if len(rows) == 1:
                return Matrix(*rows[0])
            if rows:
                raise NotFound(f"several matrices' hashes begin with {digits}: write more of it")
    raise NotFound(f"the store has no matrix {text!r}: give an id, a name, or the beginning of a hash")


def manifest(store: Store, matrix_id: int) -> bytes:
    """The registered document. Raises NotFound where there is none."""
    return _document(store, sa.select(matrix.c.manifest).where(matrix.c.id == matrix_id), f"matrix {matrix_id}")


def cells(store: Store, matrix_id: int) -> list[Cell]:
    """By condition, then by case, as the manifest lists them."""
    asked = sa.select(
        cell.c.id, cell.c.case_id, cell.c.condition, cell.c.case_position, cell.c.condition_position,
        cell.c.state, cell.c.reason,
    ).where(cell.c.matrix_id == matrix_id).order_by(cell.c.condition_position, cell.c.case_position)  # fmt: skip
    with store.reading() as connection:
        return [Cell(*row) for row in connection.execute(asked)]


def counts(store: Store, matrix_id: int) -> dict[TrialState, int]:
    """How many trials are in each state, the empty states too."""
    counted = sa.select(trial.c.state, sa.func.count()).where(trial.c.matrix_id == matrix_id)
    with store.reading() as connection:
        return _all_states((row[0], row[1]) for row in connection.execute(counted.group_by(trial.c.state)))


def counts_of_cells(store: Store, matrix_id: int, cell_ids: Collection[int] | None) -> dict[TrialState, int]:
    """The same for these cells alone; for all of them where none are named."""
    if cell_ids is None:
        return counts(store, matrix_id)
    found: dict[TrialState, int] = {}
    with store.reading() as connection:
        for batch in batches(sorted(set(cell_ids))):
            counted = sa.select(trial.c.state, sa.func.count()).where(trial.c.cell_id.in_(batch))
            for row in connection.execute(counted.group_by(trial.c.state)):
                found[row[0]] = found.get(row[0], 0) + row[1]
    return _all_states(iter(found.items()))


def counts_by_condition(store: Store, matrix_id: int) -> dict[str, dict[TrialState, int]]:
    """The same for each condition, as the manifest lists them."""
    counted = (
        sa.select(cell.c.condition, trial.c.state, sa.func.count(), sa.func.min(cell.c.condition_position))
        .join(trial, trial.c.cell_id == cell.c.id)
        .where(cell.c.matrix_id == matrix_id)
        .group_by(cell.c.condition, trial.c.state)
    )
    with store.reading() as connection:
        rows = sorted(connection.execute(counted).all(), key=lambda row: (row[3], row[0]))
    return {
        condition: _all_states((row[1], row[2]) for row in rows if row[0] == condition)
        for condition in dict.fromkeys(row[0] for row in rows)
    }


def trials(
    store: Store,
    matrix_id: int,
    *,
    states: Collection[TrialState] | None = None,
    cell_ids: Collection[int] | None = None,
    ledgers: bool = False,
    grades: bool = False,
    batch: int = 100,
) -> Iterator[Trial]:
    """The trials in planned order, with their evidence and latest grades where asked for.

    They are read ``batch`` at a time, each time as they are then: what changes meanwhile may or may not be seen.
    """
    ran = sa.func.coalesce(attempt.c.reused_from, attempt.c.id)
    document = ledger.c.document if ledgers else sa.null()
    asked = (
        sa.select(
            trial.c.id, trial.c.matrix_id, trial.c.cell_id, trial.c.case_id, trial.c.condition, trial.c.repetition,
            trial.c.sequence, trial.c.trial_key, trial.c.assignment_hash, trial.c.state, trial.c.attempt,
            trial.c.evidence_attempt_id, attempt.c.reused_from, attempt.c.started, attempt.c.ended,
            ledger.c.content_hash, ledger.c.ledger_hash, document,
        )
        .select_from(
            trial.outerjoin(attempt, attempt.c.id == trial.c.evidence_attempt_id).outerjoin(
                ledger, ledger.c.attempt_id == ran
            )
        )
        .where(trial.c.matrix_id == matrix_id, trial.c.sequence > sa.bindparam("after"))
        .order_by(trial.c.sequence)
        .limit(batch)
    )  # fmt: skip
    if states is not None:
        asked = asked.where(trial.c.state.in_(states))
    if cell_ids is not None:
        asked = asked.where(trial.c.cell_id.in_(cell_ids))
    after = -(2**31)
    while True:
        with store.reading() as connection:
            rows = _tuples(connection, asked, after=after)
            given = _latest_grades(connection, [row[11] for row in rows if row[11] is not None]) if grades else {}
        for row in rows:
            yield Trial(*(*row, tuple(given.get(row[11], {}).values())))
        if len(rows) < batch:
            return
        after = rows[-1][6]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some trials of a cell came to, all of them the same."""

    condition: str
    case_id: str
    state: TrialState
    verdict: str | None
    """None, like the next two, where the grader has not graded them."""
    task_completed: bool | None
    checks: str | None
    trials: int
    """How many they are."""


def outcomes(store: Store, matrix_id: int, grader: str, *, batch: int = 2000) -> Iterator[Outcome]:
    """What every trial came to by a grader's latest grades: counted by the database, since repetitions are alike.

    They come in planned order, by the first of those that are told together. ``batch`` trials at a time are counted, as
    they are then: what came to the same may be told once for each batch.
    """
    after = -(2**31)
    while True:
        with store.reading() as connection:
            rows = _tuples(connection, _OUTCOMES, after=after, of_matrix=matrix_id, of_grader=grader, at_most=batch)
        for row in rows:
            yield Outcome(*row[:7])
        if sum(row[6] for row in rows) < batch:
            return
        after = max(row[8] for row in rows)


def _outcomes() -> sa.Select[Any]:
    page = (
        sa.select(trial.c.condition, trial.c.case_id, trial.c.state, trial.c.sequence, trial.c.evidence_attempt_id)
        .where(trial.c.matrix_id == sa.bindparam("of_matrix"), trial.c.sequence > sa.bindparam("after"))
        .order_by(trial.c.sequence)
        .limit(sa.bindparam("at_most", type_=sa.Integer))
        .cte("page")
    )
    # Not one question for each trial: joined as a whole, it takes a twentieth of the time.
    latest = (
        sa.select(grade.c.attempt_id, sa.func.max(grade.c.id).label("id"))
        .join(page, page.c.evidence_attempt_id == grade.c.attempt_id)
        .where(grade.c.grader == sa.bindparam("of_grader"))
        .group_by(grade.c.attempt_id)
        .subquery("latest")
    )
    alike = (
        page.c.condition, page.c.case_id, page.c.state, grade.c.verdict, grade.c.task_completed, grade.c.checks,
    )  # fmt: skip
    first = sa.func.min(page.c.sequence)
    return (
        sa.select(*alike, sa.func.count(), first, sa.func.max(page.c.sequence))
        .select_from(
            page.outerjoin(latest, latest.c.attempt_id == page.c.evidence_attempt_id).outerjoin(
                grade, grade.c.id == latest.c.id
            )
        )
        .group_by(*alike)
        .order_by(first)
    )


_OUTCOMES = _outcomes()


def find_trial(store: Store, trial_id: int) -> Trial:
    """One trial with its evidence and grades. Raises NotFound where there is none."""
    asked = sa.select(trial.c.matrix_id, trial.c.sequence, trial.c.cell_id).where(trial.c.id == trial_id)
    with store.reading() as connection:
        where = connection.execute(asked).first()
    for one in trials(store, where.matrix_id, cell_ids=[where.cell_id], ledgers=True, grades=True) if where else ():
        if one.id == trial_id:
            return one
    raise NotFound(f"the store has no trial {trial_id}")


_ATTEMPT = (
    attempt.c.id, attempt.c.trial_id, attempt.c.number, attempt.c.state, attempt.c.reason, attempt.c.budget,
    attempt.c.owner, attempt.c.lease_expires, attempt.c.leased_at, attempt.c.started, attempt.c.ended,
    attempt.c.after_consequential_call, attempt.c.reused_from,
)  # fmt: skip


def attempts(store: Store, trial_id: int) -> list[Attempt]:
    """Every attempt at a trial, the first one first."""
    asked = sa.select(*_ATTEMPT).where(attempt.c.trial_id == trial_id).order_by(attempt.c.number)
    with store.reading() as connection:
        return [Attempt(*row) for row in _tuples(connection, asked)]


def abandoned(store: Store, matrix_id: int, *, limit: int = 1000) -> list[Attempt]:
    """Attempts that hold a trial but whose lease has expired, or whose owner is known to be dead.

    Whoever can read their journals loses or seals them; what nobody does so is fenced when its trial is claimed.
    """
    with store.reading() as connection:
        current = (trial.c.id == attempt.c.trial_id) & (trial.c.attempt == attempt.c.number)
        asked = (
            sa.select(*_ATTEMPT)
            .join(trial, current)
            .where(trial.c.matrix_id == matrix_id, trial.c.state == "leased")
            .where(may_be_taken(store.now(connection), dead_owners(connection)))
            .order_by(trial.c.sequence)
            .limit(limit)
        )
        return [Attempt(*row) for row in _tuples(connection, asked)]


def discarded_after_consequential_call(store: Store, matrix_id: int) -> dict[str, int]:
    """By condition: attempts that were replaced although they had made a refund or approval call."""
    counted = (
        sa.select(trial.c.condition, sa.func.count())
        .join(attempt, attempt.c.trial_id == trial.c.id)
        .where(
            trial.c.matrix_id == matrix_id,
            attempt.c.after_consequential_call,
            attempt.c.state.in_(("lost", "fenced")),
            trial.c.evidence_attempt_id.is_distinct_from(attempt.c.id),
        )
        .group_by(trial.c.condition)
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(counted)}


def lost_attempts(store: Store, matrix_id: int) -> dict[str, int]:
    """By reason: the attempts of a matrix that were lost or fenced."""
    reason = sa.func.coalesce(attempt.c.reason, attempt.c.state)
    counted = (
        sa.select(reason, sa.func.count())
        .join(trial, trial.c.id == attempt.c.trial_id)
        .where(trial.c.matrix_id == matrix_id, attempt.c.state.in_(("lost", "fenced")))
        .group_by(reason)
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(counted)}


def unused_attempts(store: Store, matrix_id: int, *, batch: int = 500) -> Iterator[UnusedAttempt]:
    """The attempts of a matrix that were lost or fenced and are no evidence, in planned order, then by number."""
    place = sa.tuple_(trial.c.sequence, attempt.c.number)
    asked = (
        sa.select(
            trial.c.sequence, attempt.c.number, attempt.c.state, attempt.c.reason, attempt.c.after_consequential_call
        )
        .join(trial, trial.c.id == attempt.c.trial_id)
        .where(
            trial.c.matrix_id == matrix_id,
            attempt.c.state.in_(("lost", "fenced")),
            trial.c.evidence_attempt_id.is_distinct_from(attempt.c.id),
        )
        .order_by(trial.c.sequence, attempt.c.number)
        .limit(batch)
    )
    after = (-1, 0)
    while True:
        with store.reading() as connection:
            rows = connection.execute(asked.where(place > sa.tuple_(*map(sa.literal, after)))).all()
        yield from (UnusedAttempt(*row) for row in rows)
        if len(rows) < batch:
            return
        after = (rows[-1].sequence, rows[-1].number)


def attempt_place(store: Store, attempt_id: int) -> AttemptPlace:
    """Where an attempt belongs. Raises NotFound where there is none."""
    asked = sa.select(trial.c.sequence, attempt.c.number).join(trial, trial.c.id == attempt.c.trial_id)
    with store.reading() as connection:
        found = connection.execute(asked.where(attempt.c.id == attempt_id)).first()
    if found is None:
        raise NotFound(f"the store has no attempt {attempt_id}")
    return AttemptPlace(*found)


def lost_attempts_by_condition(store: Store, matrix_id: int) -> dict[str, int]:
    """The attempts that were lost or fenced and are no trial's evidence."""
    counted = (
        sa.select(trial.c.condition, sa.func.count())
        .join(attempt, attempt.c.trial_id == trial.c.id)
        .where(
            trial.c.matrix_id == matrix_id,
            attempt.c.state.in_(("lost", "fenced")),
            trial.c.evidence_attempt_id.is_distinct_from(attempt.c.id),
        )
        .group_by(trial.c.condition)
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(counted)}


def assignments(store: Store, hashes: Collection[str]) -> dict[str, bytes]:
    """The documents of these hashes; unknown ones are left out."""
    found: dict[str, bytes] = {}
    with store.reading() as connection:
        for batch in batches(sorted(set(hashes))):
            asked = sa.select(assignment.c.hash, assignment.c.document).where(assignment.c.hash.in_(batch))
            found.update((row.hash, bytes(row.document)) for row in connection.execute(asked))
    return found


def ledger_document(store: Store, attempt_id: int) -> bytes:
    """An attempt's ledger, for a reused one that of the attempt that ran. Raises NotFound where there is none."""
    ran = sa.func.coalesce(attempt.c.reused_from, attempt.c.id)
    asked = sa.select(ledger.c.document).join(attempt, ledger.c.attempt_id == ran).where(attempt.c.id == attempt_id)
    return _document(store, asked, f"ledger of attempt {attempt_id}")


def journal_document(store: Store, attempt_id: int) -> bytes:
    """A lost attempt's journal. Raises NotFound where there is none."""
    asked = sa.select(journal.c.document).where(journal.c.attempt_id == attempt_id)
    return _document(store, asked, f"journal of attempt {attempt_id}")


def grades_of(store: Store, attempt_id: int) -> list[Grade]:
    """Every grade that an attempt was ever given, the first one first."""
    with store.reading() as connection:
        return list(_grades(connection, [attempt_id]))


def incidents(store: Store, matrix_id: int | None = None) -> Iterator[Incident]:
    """Of one matrix, or all of them and those that belong to none, the oldest first."""
    columns = (
        incident.c.id, incident.c.matrix_id, incident.c.attempt_id, incident.c.kind, incident.c.detail,
        incident.c.created, incident.c.document,
    )  # fmt: skip
    asked = sa.select(*columns).order_by(incident.c.id).limit(100)
    if matrix_id is not None:
        asked = asked.where(incident.c.matrix_id == matrix_id)
    after = 0
    while True:
        with store.reading() as connection:
            rows = connection.execute(asked.where(incident.c.id > after)).all()
        yield from (Incident(*row) for row in rows)
        if len(rows) < 100:
            return
        after = rows[-1].id


_PUBLICATION = (
    publication.c.matrix_id, publication.c.target, publication.c.state, publication.c.changes,
    publication.c.owner, publication.c.lease_expires, publication.c.detail,
)  # fmt: skip


def publications(store: Store, matrix_id: int) -> list[Publication]:
    asked = sa.select(*_PUBLICATION).where(publication.c.matrix_id == matrix_id).order_by(publication.c.id)
    with store.reading() as connection:
        return [Publication(*row) for row in connection.execute(asked)]


def publications_to(store: Store, target: str) -> dict[int, Publication]:
    """What a target shows, by matrix; a matrix that was never published to it is left out."""
    asked = sa.select(*_PUBLICATION).where(publication.c.target == target)
    with store.reading() as connection:
        return {row.matrix_id: Publication(*row) for row in connection.execute(asked)}


def holding(store: Store) -> set[str]:
    """The owners that hold a trial of any matrix."""
    asked = sa.select(attempt.c.owner).where(literal_state(attempt.c.state, ("leased", "running"))).distinct()
    with store.reading() as connection:
        return {row[0] for row in _tuples(connection, asked)}


def owners(store: Store) -> dict[str, int]:
    """Every owner, and when it was last heard of."""
    with store.reading() as connection:
        return {row.id: row.renewed for row in connection.execute(sa.select(owner.c.id, owner.c.renewed))}


def _tuples(connection: sa.Connection, asked: sa.Select[Any], **parameters: int | str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(asked, parameters)]


def _document(store: Store, asked: sa.Select[Any], what: str) -> bytes:
    with store.reading() as connection:
        found = connection.execute(asked).scalar_one_or_none()
    if found is None:
        raise NotFound(f"the store has no {what}")
    return bytes(found)


def _all_states(found: Iterator[tuple[TrialState, int]]) -> dict[TrialState, int]:
    every: dict[TrialState, int] = {"open": 0, "leased": 0, "delivered": 0, "graded": 0, "missing": 0}
    every.update(found)
    return every


def _latest_grades(connection: sa.Connection, attempt_ids: Sequence[int]) -> dict[int, dict[str, Grade]]:
    latest: dict[int, dict[str, Grade]] = {}
    for one in _grades(connection, attempt_ids):
        latest.setdefault(one.attempt_id, {})[one.grader] = one
    return latest


def _grades(connection: sa.Connection, attempt_ids: Sequence[int]) -> Iterator[Grade]:
    asked = sa.select(
        grade.c.attempt_id, grade.c.grader, grade.c.version, grade.c.verdict, grade.c.task_completed, grade.c.checks
    ).where(grade.c.attempt_id.in_(attempt_ids))
    for row in connection.execute(asked.order_by(grade.c.id)):
        yield Grade(*row)
