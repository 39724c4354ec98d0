"""Add callers, settings and labels of sessions, and the answers by which sessions are recognized."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for name, kind in (("caller", sa.Text), ("setting", sa.LargeBinary)):
        op.add_column("sessions_v1", sa.Column(name, kind))
    op.add_column("sessions_v1", sa.Column("first_messages", sa.BigInteger, nullable=False, server_default="0"))
    for name in ("folder", "opening"):
        op.add_column("sessions_v1", sa.Column(name, sa.LargeBinary))
    op.create_index("sessions_v1_tip", "sessions_v1", ["agent", "tip"])
    op.create_index("sessions_v1_parent", "sessions_v1", ["parent_id"])
    op.create_table(
        "answers_v1",
        sa.Column("mark", sa.LargeBinary, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("tip", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("answers_v1_session", "answers_v1", ["session_id"])
