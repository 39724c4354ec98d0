"""Summaries of a compacted head: by a model or by rules, and their verification."""
