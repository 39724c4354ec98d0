"""Explanations of cache misses."""
