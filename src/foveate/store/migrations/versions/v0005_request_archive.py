"""Add reasons of failed compactions, their application, and archived requests."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("compactions_v1", sa.Column("reason", sa.LargeBinary))
    op.create_table(
        "fold_uses_v1",
        sa.Column("compaction_id", sa.Text, primary_key=True),
        sa.Column("tip", sa.LargeBinary, primary_key=True),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("is_used", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "requests_v1",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.Column("usage", sa.LargeBinary),
        sa.Column("sent", sa.LargeBinary, nullable=False),
        sa.Column("came", sa.LargeBinary),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("requests_v1_time", "requests_v1", ["at", "id", "size_bytes"])
    op.create_index("requests_v1_session", "requests_v1", ["session_id", "at"])
