"""Create the table of calibrations, by upstream and counter."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "lessons_v1",
        sa.Column("upstream", sa.Text, primary_key=True),
        sa.Column("counter", sa.Text, primary_key=True),
        sa.Column("responses", sa.BigInteger, nullable=False),
        sa.Column("learnt", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("lessons_v1_time", "lessons_v1", ["at"])
