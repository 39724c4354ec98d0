"""Compaction: replaces the oldest part of a long conversation by a summary, reversibly."""
