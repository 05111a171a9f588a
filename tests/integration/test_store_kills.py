"""A process that is killed before or after any commit leaves a store that the next one carries on with, to the end
that an undisturbed one comes to."""

import signal
from typing import get_args

import pytest
import sqlalchemy as sa
from store_session import cut_off, use_every_transaction, violations

from grading.store import Store, TransactionName, launching, reading
from grading.store.tables import attempt, grade, judge_call, judgment, ledger, trial

MOMENTS = [(name, 1) for name in get_args(TransactionName)]
MOMENTS += [("claim", 2), ("running", 2), ("deliver", 2), ("grade", 2), ("register", 3), ("acquire_publication", 2)]


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("name", "nth"), MOMENTS)
def test_killed_at_a_commit(store_url: str, name: str, nth: int, committed: bool) -> None:
    assert cut_off(store_url, name, nth, committed=committed) == signal.SIGKILL
    with Store.open(store_url) as reopened:
        assert violations(reopened) == []
    with use_every_transaction(store_url) as store:
        _came_to_its_end(store)


def test_undisturbed(store_url: str) -> None:
    with use_every_transaction(store_url) as store:
        _came_to_its_end(store)
    with use_every_transaction(store_url) as again:
        _came_to_its_end(again)


def _came_to_its_end(store: Store) -> None:
    assert violations(store) == []
    states = [(one.name, one.state) for one in reading.matrices(store)]
    assert states == [
        ("old", "incomplete"),
        ("new", "complete"),
        ("cancelled", "cancelled"),
        ("cluster", "complete"),
        ("copied", "incomplete"),
    ]
    old, new, _, cluster, copied = (one.id for one in reading.matrices(store))
    assert reading.counts(store, old) == {"open": 0, "leased": 0, "delivered": 0, "graded": 10, "missing": 2}
    assert reading.counts(store, new) == {"open": 0, "leased": 0, "delivered": 0, "graded": 12, "missing": 0}
    assert reading.counts(store, cluster) == {"open": 0, "leased": 0, "delivered": 0, "graded": 4, "missing": 0}
    assert reading.counts(store, copied) == reading.counts(store, old)
    assert launching.unfinished(store) == []
    assert reading.lost_attempts(store, cluster) == {"pod_deleted": 1}
    # Six trials of the baseline are taken over, six of the changed candidate run.
    assert sum(one.reused_from is not None for one in reading.trials(store, new)) == 6
    with store.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(ledger)).scalar_one() == 10 + 6 + 4 + 10
        assert connection.execute(sa.select(sa.func.count()).select_from(grade)).scalar_one() == 10 + 12 + 4 + 10
        for once in (judge_call, judgment):
            assert connection.execute(sa.select(sa.func.count()).select_from(once)).scalar_one() == 10
        sealed = sa.select(attempt.c.state).join(trial, trial.c.evidence_attempt_id == attempt.c.id)
        third = sealed.where(trial.c.matrix_id == old, trial.c.sequence == 2)
        assert connection.execute(third).scalar_one() == "lost"
    assert reading.discarded_after_consequential_call(store, old) == {"baseline": 1}
    assert [one.kind for one in reading.incidents(store)] == ["ledger_malformed", "job_name_taken", "ledger_malformed"]
    assert [one.state for one in reading.publications(store, old)] == ["published"]
