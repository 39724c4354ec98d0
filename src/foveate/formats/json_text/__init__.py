"""JSON parsed and changed without touching the bytes that stay."""
