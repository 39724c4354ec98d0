"""Persistence in SQLite or PostgreSQL, with the same tables and the same behaviour.

A package that needs persistence declares a protocol. This package implements it in `repositories/`, with its
tables in `schema.py` and a migration, and exposes it as an attribute of `Store`.
"""

from foveate.store.retention import PrunePreview, PruneResult, StoreSizes
from foveate.store.store import Store, default_url, is_same_store, is_server, open_store, store_name

__all__ = [
    "PrunePreview",
    "PruneResult",
    "Store",
    "StoreSizes",
    "default_url",
    "is_same_store",
    "is_server",
    "open_store",
    "store_name",
]
