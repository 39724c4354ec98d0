"""All sessions that a session stands on: a named one may go on from the turns of several."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """From 0003 to 0004."""
    op.create_table(
        "session_parents_v1",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("parent_id", sa.Text, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("session_parents_v1_parent", "session_parents_v1", ["parent_id"])
    op.create_index("compactions_v1_earlier", "compactions_v1", ["earlier_id"])
    op.execute(
        "INSERT INTO session_parents_v1 (session_id, parent_id)"
        " SELECT id, parent_id FROM sessions_v1 WHERE parent_id IS NOT NULL"
    )
