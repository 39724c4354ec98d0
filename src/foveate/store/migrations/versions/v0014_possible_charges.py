"""Add possibly charged calls, the amount charged to accounts for each call, and corrections."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_SUMS = ("possibly_charged", "possibly_charged_picodollars")


def upgrade() -> None:
    op.add_column(
        "ledger_v1", sa.Column("is_possibly_charged", sa.BigInteger, nullable=False, server_default="0")
    )
    op.add_column("ledger_v1", sa.Column("charged_picodollars", sa.BigInteger))
    for table in ("totals_v1", "session_totals_v1"):
        for name in _SUMS:
            op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "corrections_v1",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("before_picodollars", sa.BigInteger),
        sa.Column("charged_picodollars", sa.BigInteger),
        sa.Column("after_picodollars", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.LargeBinary, nullable=False),
    )
    op.create_index("corrections_v1_time", "corrections_v1", ["at", "id"])
    op.create_index("corrections_v1_call", "corrections_v1", ["call_id"])
