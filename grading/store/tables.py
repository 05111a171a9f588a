"""The tables, their states, and what the database itself holds to: uniqueness, references, allowed states.

Times are integers, microseconds since 1970-01-01T00:00:00Z. Documents are bytes, never text, so that they come back
as they were hashed.
"""

from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from grading.store.errors import StoreError

MatrixState = Literal["registered", "running", "paused", "cancelled", "complete", "incomplete"]
CellState = Literal["open", "done", "failed"]
TrialState = Literal["open", "leased", "delivered", "graded", "missing"]
AttemptState = Literal["leased", "running", "delivered", "lost", "fenced"]
PublicationState = Literal["stale", "publishing", "published"]
Verdict = Literal["passed", "failed", "unscored"]
CallState = Literal["answered", "unavailable"]
JudgmentState = Literal["judged", "refused", "pending"]
JudgeVerdict = Literal["pass", "fail", "abstain"]
LaunchState = Literal["planned", "created", "ended"]
Budget = Literal["none", "uncharged", "charged", "provider", "ledger_bad", "unknown"]

UNFINISHED: tuple[TrialState, ...] = ("open", "leased", "delivered")
HELD: tuple[AttemptState, ...] = ("leased", "running")


class Words(sa.types.TypeDecorator[str]):
    """Text that both databases accept: PostgreSQL refuses NUL, neither can encode a lone surrogate."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise StoreError(f"text is expected where {type(value).__name__} was given: {value!r:.80}")
        if "\0" in value:
            raise StoreError(f"text with a NUL character cannot be stored: {value!r:.80}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise StoreError(f"text with half a surrogate pair cannot be stored: {value!r:.80}") from None
        return value


Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Moment = sa.BigInteger

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, words: Any) -> sa.CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in get_args(words))
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)


def _references(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column)


matrix = sa.Table(
    "matrix",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("manifest_hash", Words, nullable=False, unique=True),
    sa.Column("name", Words, nullable=False, index=True),
    sa.Column("manifest", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created", Moment, nullable=False),
    _one_of("state", MatrixState),
)

assignment = sa.Table(
    "assignment",
    metadata,
    sa.Column("hash", Words, primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
)

cell = sa.Table(
    "cell",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), nullable=False),
    sa.Column("case_id", Words, nullable=False),
    sa.Column("condition", Words, nullable=False),
    sa.Column("case_position", sa.Integer, nullable=False),
    sa.Column("condition_position", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", Words),
    sa.UniqueConstraint("matrix_id", "condition", "case_id"),
    _one_of("state", CellState),
)

trial = sa.Table(
    "trial",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), nullable=False),
    sa.Column("cell_id", Id, _references("cell.id"), nullable=False),
    sa.Column("case_id", Words, nullable=False),
    sa.Column("condition", Words, nullable=False),
    sa.Column("repetition", sa.Integer, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("trial_key", Words, nullable=False),
    sa.Column("assignment_hash", Words, _references("assignment.hash"), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # The current attempt's number: a write that carries another one is fenced.
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("evidence_attempt_id", Id),
    sa.UniqueConstraint("matrix_id", "condition", "case_id", "repetition"),
    sa.UniqueConstraint("matrix_id", "sequence"),
    # For claims in planned order and for counts; for asking whether a cell is done.
    sa.Index(None, "matrix_id", "state", "sequence"),
    sa.Index(None, "cell_id", "state"),
    _one_of("state", TrialState),
    sa.CheckConstraint("(state IN ('delivered', 'graded')) = (evidence_attempt_id IS NOT NULL)", name="evidence"),
)

owner = sa.Table(
    "owner",
    metadata,
    sa.Column("id", Words, primary_key=True),
    sa.Column("host", Words, nullable=False),
    sa.Column("boot", Words, nullable=False),
    sa.Column("namespace", Words, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_start", sa.BigInteger, nullable=False),
    sa.Column("renewed", Moment, nullable=False),
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("trial_id", Id, _references("trial.id"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", Words),
    # Which allowance of the trial a lost attempt counts against.
    sa.Column("budget", sa.Text),
    sa.Column("owner", Words, _references("owner.id")),
    sa.Column("secret_hash", sa.LargeBinary),
    sa.Column("lease_expires", Moment),
    sa.Column("leased_at", Moment, nullable=False),
    sa.Column("started", Moment),
    sa.Column("ended", Moment),
    sa.Column("after_consequential_call", sa.Boolean, nullable=False),
    # The attempt whose ledger stands for this one: always the one that ran, never itself a reused one.
    sa.Column("reused_from", Id, _references("attempt.id")),
    # The launch, and the index of its Job, whose pod holds or held it; none where no pod did.
    sa.Column("launch_id", Words, _references("launch.id")),
    sa.Column("launch_index", sa.Integer),
    sa.UniqueConstraint("trial_id", "number"),
    # What an owner holds now, to renew it.
    sa.Index(
        "ix_attempt_held",
        "owner",
        sqlite_where=sa.text("state IN ('leased', 'running')"),
        postgresql_where=sa.text("state IN ('leased', 'running')"),
    ),
    _one_of("state", AttemptState),
    _one_of("budget", Budget),
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("attempt_id", Id, _references("attempt.id"), primary_key=True, autoincrement=False),
    sa.Column("content_hash", Words, nullable=False),
    sa.Column("ledger_hash", Words, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("received", Moment, nullable=False),
)

journal = sa.Table(
    "journal",
    metadata,
    sa.Column("attempt_id", Id, _references("attempt.id"), primary_key=True, autoincrement=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
)

grade = sa.Table(
    "grade",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("attempt_id", Id, _references("attempt.id"), nullable=False),
    sa.Column("grader", Words, nullable=False),
    sa.Column("version", Words, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("task_completed", sa.Boolean),
    sa.Column("checks", Words, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.UniqueConstraint("attempt_id", "grader", "version"),
    _one_of("verdict", Verdict),
)

judge_configuration = sa.Table(
    "judge_configuration",
    metadata,
    sa.Column("hash", Words, primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
)

judge_request = sa.Table(
    "judge_request",
    metadata,
    sa.Column("hash", Words, primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
)

# Every call that was made, for ever: what was paid for, and what need not be asked again.
judge_call = sa.Table(
    "judge_call",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("call", Words, nullable=False, unique=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), nullable=False, index=True),
    sa.Column("request_hash", Words, _references("judge_request.hash"), nullable=False),
    sa.Column("configuration_hash", Words, _references("judge_configuration.hash"), nullable=False),
    sa.Column("vote", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Index(None, "request_hash", "configuration_hash", "vote"),
    _one_of("state", CallState),
)

judgment = sa.Table(
    "judgment",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("attempt_id", Id, _references("attempt.id"), nullable=False),
    sa.Column("configuration_hash", Words, _references("judge_configuration.hash"), nullable=False),
    # The hash of everything but the clock that decides whether it counts.
    sa.Column("qualification", Words, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # Why it does not count, or why there is none yet.
    sa.Column("reason", Words),
    sa.Column("verdict", sa.Text),
    # None while it is pending.
    sa.Column("document", sa.LargeBinary),
    sa.Column("created", Moment, nullable=False),
    sa.Index(None, "attempt_id", "configuration_hash", "id"),
    # Once judged, a ledger is not judged again by the same judge under the same qualification.
    sa.Index(
        "uq_judgment_judged",
        "attempt_id",
        "configuration_hash",
        "qualification",
        unique=True,
        sqlite_where=sa.text("state = 'judged'"),
        postgresql_where=sa.text("state = 'judged'"),
    ),
    _one_of("state", JudgmentState),
    _one_of("verdict", JudgeVerdict),
    sa.CheckConstraint("(state = 'judged') = (verdict IS NOT NULL)", name="judged"),
    sa.CheckConstraint("(state = 'pending') = (document IS NULL)", name="pending"),
)

incident = sa.Table(
    "incident",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), index=True),
    sa.Column("attempt_id", Id, _references("attempt.id"), index=True),
    sa.Column("kind", Words, nullable=False),
    sa.Column("detail", Words, nullable=False),
    sa.Column("document", sa.LargeBinary),
    sa.Column("created", Moment, nullable=False),
)

publication = sa.Table(
    "publication",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), nullable=False),
    sa.Column("target", Words, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # Raised with every change of what is to be published, so that one made while publishing is not forgotten.
    sa.Column("changes", sa.BigInteger, nullable=False),
    sa.Column("owner", Words, _references("owner.id")),
    sa.Column("lease_expires", Moment),
    sa.Column("detail", Words),
    sa.UniqueConstraint("matrix_id", "target"),
    _one_of("state", PublicationState),
)


# How a matrix is run in a cluster, for those that are.
placement = sa.Table(
    "placement",
    metadata,
    sa.Column("matrix_id", Id, _references("matrix.id"), primary_key=True, autoincrement=False),
    sa.Column("trials_per_pod", sa.Integer, nullable=False),
    sa.Column("parallelism", sa.Integer),
    sa.Column("queue", Words),
    # Images, providers and the chosen cells, as JSON.
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("actor", Words),
    sa.Column("created", Moment, nullable=False),
)

# A Job that is to be, is or was: stored before it is created, so that whoever finds it knows what it is for.
launch = sa.Table(
    "launch",
    metadata,
    sa.Column("id", Words, primary_key=True),
    sa.Column("matrix_id", Id, _references("matrix.id"), nullable=False),
    sa.Column("cell_id", Id, _references("cell.id"), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("job", Words, nullable=False, unique=True),
    sa.Column("job_uid", Words),
    sa.Column("completions", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", Words),
    # Whether its Job is gone from the cluster, or never came to be.
    sa.Column("deleted", sa.Boolean, nullable=False),
    # Why its pods do not run yet, as the cluster says.
    sa.Column("waiting", Words),
    sa.Column("created", Moment, nullable=False),
    sa.Column("ended", Moment),
    sa.UniqueConstraint("cell_id", "generation"),
    sa.Index(None, "matrix_id"),
    _one_of("state", LaunchState),
    sa.CheckConstraint("(state = 'ended') = (ended IS NOT NULL)", name="ended"),
)

launch_trial = sa.Table(
    "launch_trial",
    metadata,
    sa.Column("launch_id", Words, _references("launch.id"), primary_key=True),
    sa.Column("launch_index", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("trial_id", Id, _references("trial.id"), nullable=False, index=True),
    # Given up by its index: its trial may be run by a further generation, its pod runs nothing more.
    sa.Column("released", sa.Boolean, nullable=False),
)

# What a pod has told of an attempt, line by line, until its ledger is there.
journal_line = sa.Table(
    "journal_line",
    metadata,
    sa.Column("attempt_id", Id, _references("attempt.id"), primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("line", sa.LargeBinary, nullable=False),
)


def literal_state(column: sa.ColumnElement[Any], words: tuple[str, ...]) -> sa.ColumnElement[bool]:
    """A condition on states written into the statement: SQLite uses a partial index for nothing else."""
    return column.in_(sa.bindparam(None, words, expanding=True, literal_execute=True, type_=sa.Text()))
