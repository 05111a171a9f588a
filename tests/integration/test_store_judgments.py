"""Calls and judgments in both databases: only ever added, the first answer is the one that is used again."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from store_session import GRADERS, digest, enrolled, running_matrix

from grading.store import NotFound, StateError, Store, StoreError, judgments, reading
from grading.store.delivering import Delivery, deliver
from grading.store.grades import Grade, add_grades
from grading.store.leasing import claim
from grading.store.publishing import acquire_publication, release_publication

CONFIGURATION, REQUEST, QUALIFICATION = digest("c"), digest("r"), digest("q")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened


def evidence(store: Store) -> tuple[int, int, int]:
    """A matrix, an attempt of it that is a trial's evidence, and one that is none."""
    matrix_id = running_matrix(store)
    first, second = claim(store, enrolled(store), matrix_id, limit=2, lease_seconds=60)
    deliver(store, [Delivery(first.attempt_id, first.secret, digest(1), digest(2), b"{}", 1, 2)])
    add_grades(store, [Grade(first.attempt_id, *GRADERS[0], "passed", True, "[]")], GRADERS)
    judgments.register_judge(store, CONFIGURATION, b"{}")
    return matrix_id, first.attempt_id, second.attempt_id


def call(matrix_id: int, name: str, vote: int = 0, state: str = "answered", document: bytes = b"{}") -> judgments.Call:
    return judgments.Call(name, matrix_id, REQUEST, CONFIGURATION, vote, state, document)  # type: ignore[arg-type]


def row(
    attempt_id: int, state: str, reason: str | None = None, qualification: str = QUALIFICATION
) -> judgments.StoredJudgment:
    judged = state == "judged"
    document = None if state == "pending" else b'{"state": "%b"}' % state.encode()
    return judgments.StoredJudgment(
        attempt_id,
        CONFIGURATION,
        qualification,
        state,
        reason,
        "pass" if judged else None,
        document,  # type: ignore[arg-type]
    )


def test_the_first_answer_to_a_request_is_the_one_that_is_used_again_and_every_call_is_kept(store: Store) -> None:
    matrix_id, _, _ = evidence(store)
    judgments.add_call(store, call(matrix_id, "a", state="unavailable"), b"request")
    assert judgments.answered(store, REQUEST, CONFIGURATION) == {}
    judgments.add_call(store, call(matrix_id, "b", document=b"1"), b"request")
    judgments.add_call(store, call(matrix_id, "c", document=b"2"), b"request")
    judgments.add_call(store, call(matrix_id, "d", vote=1), b"request")
    assert {vote: one.call for vote, one in judgments.answered(store, REQUEST, CONFIGURATION).items()} == {
        0: "b",
        1: "d",
    }
    assert [one.call for one in judgments.calls(store, matrix_id)] == ["a", "b", "c", "d"]
    assert judgments.request_document(store, REQUEST) == b"request"
    with pytest.raises(StoreError, match="another document"):
        judgments.add_call(store, call(matrix_id, "e"), b"another request")
    with pytest.raises(StoreError):
        judgments.add_call(store, call(matrix_id, "d"), b"request")
    assert len(judgments.calls(store, matrix_id)) == 4


def test_a_judged_ledger_stays_judged_and_what_was_not_may_be_tried_again(store: Store) -> None:
    _, attempt, _ = evidence(store)
    tried = [
        row(attempt, "pending", "judge_unavailable"),
        row(attempt, "pending", "judge_unavailable"),
        row(attempt, "refused", "qualification_not_current"),
        row(attempt, "pending", "budget"),
        row(attempt, "judged"),
        row(attempt, "judged"),
        row(attempt, "refused", "qualification_not_current"),
        row(attempt, "judged", qualification=digest("other")),
    ]
    assert [judgments.add_judgments(store, [one])[0] for one in tried] == [
        "added", "repeated", "added", "added", "added", "repeated", "repeated", "added"
    ]  # fmt: skip
    assert [(one.state, one.reason) for one in judgments.history(store, attempt)] == [
        ("pending", "judge_unavailable"),
        ("refused", "qualification_not_current"),
        ("pending", "budget"),
        ("judged", None),
        ("judged", None),
    ]
    assert judgments.latest(store, [attempt], CONFIGURATION, QUALIFICATION)[attempt].state == "judged"
    assert judgments.latest(store, [attempt], digest("another judge")) == {}


def test_the_database_itself_refuses_a_second_judgment_and_one_that_contradicts_itself(store: Store) -> None:
    _, attempt, _ = evidence(store)
    judgments.add_judgments(store, [row(attempt, "judged")])
    columns = "attempt_id, configuration_hash, qualification, state, verdict, document, created"
    for values in (
        f"{attempt}, '{CONFIGURATION}', '{QUALIFICATION}', 'judged', 'pass', '', 1",
        f"{attempt}, '{CONFIGURATION}', 'q', 'judged', NULL, '', 1",
        f"{attempt}, '{CONFIGURATION}', 'q', 'refused', 'pass', '', 1",
        f"{attempt}, '{CONFIGURATION}', 'q', 'refused', NULL, NULL, 1",
        f"{attempt}, '{CONFIGURATION}', 'q', 'guessed', NULL, '', 1",
        f"{attempt}, 'unknown', 'q', 'judged', 'pass', '', 1",
    ):
        with pytest.raises(StoreError), store.transaction("judge") as connection:
            connection.execute(sa.text(f"INSERT INTO judgment ({columns}) VALUES ({values})"))


def test_only_evidence_is_judged(store: Store) -> None:
    _, _, running = evidence(store)
    with pytest.raises(StateError, match="no trial's evidence"):
        judgments.add_judgments(store, [row(running, "judged")])
    with pytest.raises(NotFound, match="no attempt 999"):
        judgments.add_judgments(store, [row(999, "judged")])


def test_a_judgment_makes_what_was_published_stale(store: Store) -> None:
    matrix_id, attempt, _ = evidence(store)
    held = acquire_publication(store, matrix_id, "phoenix", enrolled(store), lease_seconds=60)
    assert held is not None
    release_publication(store, held, published=True)
    judgments.add_judgments(store, [row(attempt, "judged")])
    assert [one.state for one in reading.publications(store, matrix_id)] == ["stale"]
