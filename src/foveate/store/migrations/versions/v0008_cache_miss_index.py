"""Create an index of traces with a cache miss."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_BROKE = sa.text("broke IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        "traces_v1_broke", "traces_v1", ["at", "id", "agent"], sqlite_where=_BROKE, postgresql_where=_BROKE
    )
