"""Add what an edit of the history was expected to save, and the tool results that it cleared."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("compactions_v1", sa.Column("decision", sa.Text))
    op.add_column("compactions_v1", sa.Column("cleared", sa.LargeBinary))
