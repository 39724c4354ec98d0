"""Create the table of session parents: a named session may continue the turns of several others."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
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
