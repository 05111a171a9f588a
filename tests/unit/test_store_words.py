"""What the store decides without a database: which text it takes, how often a trial is tried, what an error means."""

import sqlite3

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from grading.store.attempts import Found, batches, secret_hash
from grading.store.errors import StoreError, explained
from grading.store.losing import ATTEMPTS_IN_ALL, REASONS, _is_exhausted
from grading.store.tables import Budget, Words

DIALECT = sqlite.dialect()


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_all_other_text_is_taken_as_it_is(text: str) -> None:
    assert Words().process_bind_param(text, DIALECT) == text


@given(st.text(), st.sampled_from(["\0", "\ud800", "\udfff"]), st.text())
def test_nul_and_half_a_surrogate_pair_are_refused(before: str, odd: str, after: str) -> None:
    with pytest.raises(StoreError, match="cannot be stored"):
        Words().process_bind_param(before + odd + after, DIALECT)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(StoreError, match="text is expected where int was given"):
        Words().process_bind_param(5, DIALECT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used", "lost_to", "missing"),
    [
        ({"uncharged": 19}, "uncharged", False),
        ({"uncharged": 20}, "uncharged", True),
        ({"charged": 2}, "charged", False),
        ({"charged": 3}, "charged", True),
        ({"provider": 2}, "provider", False),
        ({"provider": 3}, "provider", True),
        ({"ledger_bad": 1}, "ledger_bad", False),
        ({"ledger_bad": 2}, "ledger_bad", True),
        ({"unknown": 1}, "unknown", False),
        ({"unknown": 2}, "unknown", True),
        ({"none": 1000}, "none", False),
        # Attempts in all: those lost to something else count too, but the cluster's are counted apart.
        ({"charged": 1, "unknown": 1}, "unknown", True),
        ({"provider": 1, "charged": 1}, "charged", False),
        ({"uncharged": 19, "charged": 2}, "charged", False),
        ({"none": 30, "uncharged": 3, "unknown": 1}, "unknown", False),
        ({"charged": 2, "uncharged": 19}, "uncharged", False),
    ],
)
def test_attempts_in_all(used: dict[str, int], lost_to: Budget, missing: bool) -> None:
    assert _is_exhausted(used, lost_to) is missing


def test_every_reason_has_an_allowance() -> None:
    assert set(REASONS.values()) | {"unknown"} == set(ATTEMPTS_IN_ALL)


@pytest.mark.parametrize(
    ("state", "trial_state", "number", "current", "holds"),
    [
        ("leased", "leased", 2, 2, True),
        ("running", "leased", 2, 2, True),
        ("running", "leased", 1, 2, False),
        ("running", "delivered", 2, 2, False),
        ("fenced", "leased", 1, 1, False),
        ("lost", "open", 1, 1, False),
        ("delivered", "delivered", 1, 1, False),
    ],
)
def test_who_holds_a_trial(state: str, trial_state: str, number: int, current: int, holds: bool) -> None:
    one = Found(1, number, state, secret_hash("s"), False, 1, trial_state, current, None, 1, 1, None)
    assert one.holds_trial is holds
    assert one.is_opened_by("s")
    assert one.is_opened_by(None)
    assert not one.is_opened_by("t")
    assert not one._replace(secret_hash=None).is_opened_by("s")


@given(st.lists(st.integers()), st.integers(1, 10))
def test_batches_leave_nothing_out(items: list[int], size: int) -> None:
    made = list(batches(iter(items), size))
    assert [one for batch in made for one in batch] == items
    assert all(1 <= len(batch) <= size for batch in made)


class OperationalError(Exception):
    """As psycopg names it."""

    sqlstate: str | None = None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SQLITE_FULL", "the disk is full"),
        ("SQLITE_READONLY_DBMOVED", "it is read-only"),
        ("SQLITE_CANTOPEN_ISDIR", "cannot be opened"),
        ("SQLITE_NOTADB", "it is not a store"),
        ("SQLITE_BUSY_SNAPSHOT", "another process"),
        ("SQLITE_IOERR_WRITE", "the disk may be full"),
        ("SQLITE_CONSTRAINT_UNIQUE", "the database refuses it"),
    ],
)
def test_errors_of_sqlite_in_words(name: str, said: str) -> None:
    cause = sqlite3.OperationalError("driver's words")
    cause.sqlite_errorname = name
    shown = str(explained(sa.exc.OperationalError("INSERT", {}, cause), "/a/store.db", "deliver"))
    assert shown.startswith("/a/store.db: deliver: ")
    assert said in shown
    assert "driver's words" in shown


@pytest.mark.parametrize(
    ("state", "said"),
    [("53100", "disk is full"), ("25006", "accepts no writes"), (None, "cannot be reached"), ("23505", "refuses it")],
)
def test_errors_of_postgresql_in_words(state: str | None, said: str) -> None:
    cause = OperationalError("driver's\n  words")
    cause.sqlstate = state
    assert said in str(explained(sa.exc.DBAPIError("INSERT", {}, cause), "postgresql://host/x", "deliver"))


def test_our_own_refusal_is_not_wrapped() -> None:
    own = StoreError("ours")
    assert explained(sa.exc.StatementError("x", "INSERT", {}, own), "place", "deliver") is own
