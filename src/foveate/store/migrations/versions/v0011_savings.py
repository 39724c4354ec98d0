"""Add what calls would have cost without Foveate, and planned rewrites of histories.

Existing calls are marked as `earlier`, and keep the savings that they were recorded with.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_AMOUNTS = (
    *("without_picodollars", "saved_by_compaction", "saved_by_context", "saved_by_breakpoints"),
    *("saved_by_keep_alive", "simulation_error"),
)
_SUMS = (
    *("planned_rewrites", "rewritten_tokens", "compared", *_AMOUNTS),
    *("would_not_fit", "would_not_fit_picodollars"),
)


def upgrade() -> None:
    op.add_column("ledger_v1", sa.Column("comparison", sa.Text, nullable=False, server_default="earlier"))
    for name in _AMOUNTS:
        op.add_column("ledger_v1", sa.Column(name, sa.BigInteger))
    for table in ("totals_v1", "session_totals_v1"):
        for name in _SUMS:
            op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
