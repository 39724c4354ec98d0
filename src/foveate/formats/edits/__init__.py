"""Edits of a request, planned and written into its bytes."""
