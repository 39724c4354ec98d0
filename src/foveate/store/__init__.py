"""Keeps what the rooms ask to have kept, in SQLite or PostgreSQL: the same tables, the same behaviour.

A room that needs something kept declares a small protocol. Here it gets its tables (`schema.py`, a migration),
a file of transactions that implements the protocol (as `turns.py`), and a name on `Store`.
"""

from foveate.store.retention import PrunePreview, PruneResult, StoreSizes
from foveate.store.store import Store, default_url, is_server, open_store, store_name

__all__ = [
    "PrunePreview",
    "PruneResult",
    "Store",
    "StoreSizes",
    "default_url",
    "is_server",
    "open_store",
    "store_name",
]
