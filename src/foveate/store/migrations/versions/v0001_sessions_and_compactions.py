"""Create the tables of sessions, turns, token counts, compactions and their locks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sessions_v1",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("tip", sa.LargeBinary, nullable=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("parent_id", sa.Text),
        sa.Column("forked_at", sa.LargeBinary),
    )
    op.create_table(
        "turns_v1",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("turns_v1_session", "turns_v1", ["session_id"])
    op.create_table(
        "turn_counts_v1",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("counter", sa.Text, primary_key=True),
        sa.Column("counted", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "compactions_v1",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("boundary", sa.LargeBinary, nullable=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("seen_messages", sa.BigInteger, nullable=False),
        sa.Column("summary", sa.LargeBinary, nullable=False),
        sa.Column("carried", sa.Text, nullable=False),
        sa.Column("tokens_before", sa.BigInteger, nullable=False),
        sa.Column("tokens_after", sa.BigInteger, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("cost", sa.Text),
        sa.Column("duration_seconds", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("compacted_at", sa.Double, nullable=False),
        sa.Column("undone_at", sa.Double),
    )
    op.create_index("compactions_v1_boundary", "compactions_v1", ["agent", "boundary"])
    op.create_index("compactions_v1_session", "compactions_v1", ["session_id"])
    op.create_index("compactions_v1_time", "compactions_v1", ["compacted_at"])
    op.create_table(
        "folded_turns_v1",
        sa.Column("compaction_id", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("message", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "compaction_locks_v1",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
