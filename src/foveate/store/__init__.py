"""Keeps what the rooms ask to have kept, in SQLite or PostgreSQL: the same tables, the same behaviour."""
