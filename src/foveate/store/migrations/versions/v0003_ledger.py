"""Create the ledger, accounts and reservations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "ledger_v1",
        sa.Column("call_id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("uncached", sa.BigInteger, nullable=False),
        sa.Column("read", sa.BigInteger, nullable=False),
        sa.Column("written_5m", sa.BigInteger, nullable=False),
        sa.Column("written_1h", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("picodollars", sa.BigInteger),
        sa.Column("said_dollars", sa.Text),
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("estimated_input_tokens", sa.BigInteger),
        sa.Column("estimated_picodollars", sa.BigInteger),
        sa.Column("saved_by_cache", sa.BigInteger),
        sa.Column("saved_by_folds", sa.BigInteger),
        sa.Column("saved_by_cuts", sa.BigInteger),
        sa.Column("is_partial", sa.BigInteger, nullable=False),
        sa.Column("usage", sa.LargeBinary, nullable=False),
    )
    op.create_index("ledger_v1_time", "ledger_v1", ["at", "call_id"])
    op.create_index("ledger_v1_session", "ledger_v1", ["session_id", "at"])
    op.create_table(
        "accounts_v1",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("spent", sa.BigInteger, nullable=False),
        sa.Column("reserved", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reservations_v1",
        sa.Column("call_id", sa.Text, primary_key=True),
        sa.Column("accounts", sa.Text, nullable=False),
        sa.Column("picodollars", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("reservations_v1_time", "reservations_v1", ["expires_at"])
