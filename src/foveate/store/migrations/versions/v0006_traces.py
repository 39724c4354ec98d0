"""Create the table of traces."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "traces_v1",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("window_tokens", sa.BigInteger),
        sa.Column("fold_id", sa.Text),
        sa.Column("told", sa.LargeBinary, nullable=False),
        sa.Column("broke", sa.LargeBinary),
    )
    op.create_index("traces_v1_time", "traces_v1", ["at", "id"])
    op.create_index("traces_v1_session", "traces_v1", ["session_id", "at"])
