"""Sessions: which one a request belongs to, and what is stored about it."""
