"""Folding: the head of a long history becomes a summary, and nothing of it is lost."""
