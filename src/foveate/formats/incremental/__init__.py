"""Caches that let a growing conversation be parsed at the cost of its new messages."""
