"""Launches: how a matrix is placed on a cluster, its Jobs and their trials, and what their pods tell."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "placement",
        sa.Column("matrix_id", _ID, autoincrement=False, nullable=False),
        sa.Column("trials_per_pod", sa.Integer(), nullable=False),
        sa.Column("parallelism", sa.Integer(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_placement_matrix_id_matrix")),
        sa.PrimaryKeyConstraint("matrix_id", name=op.f("pk_placement")),
    )
    op.create_table(
        "launch",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("matrix_id", _ID, nullable=False),
        sa.Column("cell_id", _ID, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("job_uid", sa.Text(), nullable=True),
        sa.Column("completions", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('planned', 'created', 'ended')", name=op.f("ck_launch_state")),
        sa.CheckConstraint("(state = 'ended') = (ended IS NOT NULL)", name=op.f("ck_launch_ended")),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name=op.f("fk_launch_cell_id_cell")),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_launch_matrix_id_matrix")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch")),
        sa.UniqueConstraint("cell_id", "generation", name=op.f("uq_launch_cell_id_generation")),
        sa.UniqueConstraint("job", name=op.f("uq_launch_job")),
    )
    op.create_index(op.f("ix_launch_matrix_id"), "launch", ["matrix_id"], unique=False)
    op.create_table(
        "launch_trial",
        sa.Column("launch_id", sa.Text(), nullable=False),
        sa.Column("launch_index", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("trial_id", _ID, nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launch.id"], name=op.f("fk_launch_trial_launch_id_launch")),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name=op.f("fk_launch_trial_trial_id_trial")),
        sa.PrimaryKeyConstraint("launch_id", "launch_index", "position", name=op.f("pk_launch_trial")),
    )
    op.create_index(op.f("ix_launch_trial_trial_id"), "launch_trial", ["trial_id"], unique=False)
    op.create_table(
        "journal_line",
        sa.Column("attempt_id", _ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("line", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_journal_line_attempt_id_attempt")),
        sa.PrimaryKeyConstraint("attempt_id", "number", name=op.f("pk_journal_line")),
    )
    # In words that both databases know: SQLite adds a constraint with its column or never.
    op.execute(
        "ALTER TABLE attempt ADD COLUMN launch_id TEXT CONSTRAINT fk_attempt_launch_id_launch REFERENCES launch (id)"
    )
    op.add_column("attempt", sa.Column("launch_index", sa.Integer(), nullable=True))
