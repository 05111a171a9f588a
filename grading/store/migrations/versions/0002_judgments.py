"""Judges: their configurations, what they were shown, every call, and the judgments."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("judge_configuration", "judge_request"):
        op.create_table(
            name,
            sa.Column("hash", sa.Text(), nullable=False),
            sa.Column("document", sa.LargeBinary(), nullable=False),
            sa.PrimaryKeyConstraint("hash", name=op.f(f"pk_{name}")),
        )
    op.create_table(
        "judge_call",
        sa.Column("id", _ID, nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("matrix_id", _ID, nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("configuration_hash", sa.Text(), nullable=False),
        sa.Column("vote", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('answered', 'unavailable')", name=op.f("ck_judge_call_state")),
        sa.ForeignKeyConstraint(
            ["configuration_hash"],
            ["judge_configuration.hash"],
            name=op.f("fk_judge_call_configuration_hash_judge_configuration"),
        ),
        sa.ForeignKeyConstraint(["matrix_id"], ["matrix.id"], name=op.f("fk_judge_call_matrix_id_matrix")),
        sa.ForeignKeyConstraint(
            ["request_hash"], ["judge_request.hash"], name=op.f("fk_judge_call_request_hash_judge_request")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judge_call")),
        sa.UniqueConstraint("call", name=op.f("uq_judge_call_call")),
    )
    op.create_index(op.f("ix_judge_call_matrix_id"), "judge_call", ["matrix_id"], unique=False)
    op.create_index(
        op.f("ix_judge_call_request_hash_configuration_hash_vote"),
        "judge_call",
        ["request_hash", "configuration_hash", "vote"],
        unique=False,
    )
    op.create_table(
        "judgment",
        sa.Column("id", _ID, nullable=False),
        sa.Column("attempt_id", _ID, nullable=False),
        sa.Column("configuration_hash", sa.Text(), nullable=False),
        sa.Column("qualification", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('judged', 'refused', 'pending')", name=op.f("ck_judgment_state")),
        sa.CheckConstraint("verdict IN ('pass', 'fail', 'abstain')", name=op.f("ck_judgment_verdict")),
        sa.CheckConstraint("(state = 'judged') = (verdict IS NOT NULL)", name=op.f("ck_judgment_judged")),
        sa.CheckConstraint("(state = 'pending') = (document IS NULL)", name=op.f("ck_judgment_pending")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_judgment_attempt_id_attempt")),
        sa.ForeignKeyConstraint(
            ["configuration_hash"],
            ["judge_configuration.hash"],
            name=op.f("fk_judgment_configuration_hash_judge_configuration"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judgment")),
    )
    op.create_index(
        op.f("ix_judgment_attempt_id_configuration_hash_id"),
        "judgment",
        ["attempt_id", "configuration_hash", "id"],
        unique=False,
    )
    op.create_index(
        "uq_judgment_judged",
        "judgment",
        ["attempt_id", "configuration_hash", "qualification"],
        unique=True,
        sqlite_where=sa.text("state = 'judged'"),
        postgresql_where=sa.text("state = 'judged'"),
    )
