"""Folds that took in an earlier one, and how much of a cut tool result is sent."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """From 0001 to 0002."""
    op.add_column("compactions_v1", sa.Column("earlier_id", sa.Text))
    op.add_column("compactions_v1", sa.Column("limit_tokens", sa.BigInteger))
