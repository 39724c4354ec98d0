"""Add chains of compactions, and the limits of truncated tool results."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("compactions_v1", sa.Column("earlier_id", sa.Text))
    op.add_column("compactions_v1", sa.Column("limit_tokens", sa.BigInteger))
