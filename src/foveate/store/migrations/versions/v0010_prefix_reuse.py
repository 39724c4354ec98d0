"""Create the table of prefix reuse, from which the placement of cache breakpoints learns."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "prefix_reuse_v1",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("learnt", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("prefix_reuse_v1_time", "prefix_reuse_v1", ["at"])
