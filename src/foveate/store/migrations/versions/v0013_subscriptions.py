"""Add calls at inherited prices and calls of subscriptions, and the table of rate limits."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_SUMS = ("inherited", "inherited_picodollars", "subscription", "subscription_picodollars")


def upgrade() -> None:
    for name in ("is_inherited", "is_subscription"):
        op.add_column("ledger_v1", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    for table in ("totals_v1", "session_totals_v1"):
        for name in _SUMS:
            op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "rate_limits_v1",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("provider", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("used", sa.Double),
        sa.Column("resets_at", sa.Double),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("rate_limits_v1_time", "rate_limits_v1", ["at"])
