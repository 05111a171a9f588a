"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "assignment",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_assignment")),
    )
    op.create_table(
        "matrix",
        sa.Column("id", _ID, nullable=False),
        sa.Column("manifest_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('registered', 'running', 'paused', 'cancelled', 'complete', 'incomplete')",
            name=op.f("ck_matrix_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_matrix")),
        sa.UniqueConstraint("manifest_hash", name=op.f("uq_matrix_manifest_hash")),
    )
    op.create_index(op.f("ix_matrix_name"), "matrix", ["name"], unique=False)
    op.create_table(
        "owner",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_start", sa.BigInteger(), nullable=False),
        sa.Column("renewed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owner")),
    )
    op.create_table(
        "cell",
        sa.Column("id", _ID, nullable=False),
        sa.Column("matrix_id", _ID, nullable=False),
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=False),
        sa.Column("case_position", sa.Integer(), nullable=False),
        sa.Column("condition_position", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('open', 'done', 'failed')", name=op.f("ck_cell_state")),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_cell_matrix_id_matrix")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell")),
        sa.UniqueConstraint("matrix_id", "condition", "case_id", name=op.f("uq_cell_matrix_id_condition_case_id")),
    )
    op.create_table(
        "publication",
        sa.Column("id", _ID, nullable=False),
        sa.Column("matrix_id", _ID, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_expires", sa.BigInteger(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('stale', 'publishing', 'published')", name=op.f("ck_publication_state")),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_publication_matrix_id_matrix")),
        sa.ForeignKeyConstraint(["owner"], ["owner.id"], name=op.f("fk_publication_owner_owner")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_publication")),
        sa.UniqueConstraint("matrix_id", "target", name=op.f("uq_publication_matrix_id_target")),
    )
    op.create_table(
        "trial",
        sa.Column("id", _ID, nullable=False),
        sa.Column("matrix_id", _ID, nullable=False),
        sa.Column("cell_id", _ID, nullable=False),
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=False),
        sa.Column("repetition", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("trial_key", sa.Text(), nullable=False),
        sa.Column("assignment_hash", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("evidence_attempt_id", _ID, nullable=True),
        sa.CheckConstraint(
            "(state IN ('delivered', 'graded')) = (evidence_attempt_id IS NOT NULL)", name=op.f("ck_trial_evidence")
        ),
        sa.CheckConstraint(
            "state IN ('open', 'leased', 'delivered', 'graded', 'missing')", name=op.f("ck_trial_state")
        ),
        sa.ForeignKeyConstraint(
            ["assignment_hash"], ["assignment.hash"], name=op.f("fk_trial_assignment_hash_assignment")
        ),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name=op.f("fk_trial_cell_id_cell")),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_trial_matrix_id_matrix")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trial")),
        sa.UniqueConstraint(
            "matrix_id",
            "condition",
            "case_id",
            "repetition",
            name=op.f("uq_trial_matrix_id_condition_case_id_repetition"),
        ),
        sa.UniqueConstraint("matrix_id", "sequence", name=op.f("uq_trial_matrix_id_sequence")),
    )
    op.create_index(op.f("ix_trial_cell_id_state"), "trial", ["cell_id", "state"], unique=False)
    op.create_index(
        op.f("ix_trial_matrix_id_state_sequence"), "trial", ["matrix_id", "state", "sequence"], unique=False
    )
    op.create_table(
        "attempt",
        sa.Column("id", _ID, nullable=False),
        sa.Column("trial_id", _ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("budget", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=True),
        sa.Column("lease_expires", sa.BigInteger(), nullable=True),
        sa.Column("leased_at", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=True),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("after_consequential_call", sa.Boolean(), nullable=False),
        sa.Column("reused_from", _ID, nullable=True),
        sa.CheckConstraint(
            "budget IN ('none', 'uncharged', 'charged', 'provider', 'ledger_bad', 'unknown')",
            name=op.f("ck_attempt_budget"),
        ),
        sa.CheckConstraint(
            "state IN ('leased', 'running', 'delivered', 'lost', 'fenced')", name=op.f("ck_attempt_state")
        ),
        sa.ForeignKeyConstraint(["owner"], ["owner.id"], name=op.f("fk_attempt_owner_owner")),
        sa.ForeignKeyConstraint(["reused_from"], ["attempt.id"], name=op.f("fk_attempt_reused_from_attempt")),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name=op.f("fk_attempt_trial_id_trial")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("trial_id", "number", name=op.f("uq_attempt_trial_id_number")),
    )
    op.create_index(
        "ix_attempt_held",
        "attempt",
        ["owner"],
        unique=False,
        sqlite_where=sa.text("state IN ('leased', 'running')"),
        postgresql_where=sa.text("state IN ('leased', 'running')"),
    )
    op.create_table(
        "grade",
        sa.Column("id", _ID, nullable=False),
        sa.Column("attempt_id", _ID, nullable=False),
        sa.Column("grader", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("task_completed", sa.Boolean(), nullable=True),
        sa.Column("checks", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("verdict IN ('passed', 'failed', 'unscored')", name=op.f("ck_grade_verdict")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_grade_attempt_id_attempt")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grade")),
        sa.UniqueConstraint("attempt_id", "grader", "version", name=op.f("uq_grade_attempt_id_grader_version")),
    )
    op.create_table(
        "incident",
        sa.Column("id", _ID, nullable=False),
        sa.Column("matrix_id", _ID, nullable=True),
        sa.Column("attempt_id", _ID, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_incident_attempt_id_attempt")),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_incident_matrix_id_matrix")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident")),
    )
    op.create_index(op.f("ix_incident_attempt_id"), "incident", ["attempt_id"], unique=False)
    op.create_index(op.f("ix_incident_matrix_id"), "incident", ["matrix_id"], unique=False)
    op.create_table(
        "journal",
        sa.Column("attempt_id", _ID, autoincrement=False, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_journal_attempt_id_attempt")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_journal")),
    )
    op.create_table(
        "ledger",
        sa.Column("attempt_id", _ID, autoincrement=False, nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("ledger_hash", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_ledger_attempt_id_attempt")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_ledger")),
    )
