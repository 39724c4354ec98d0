"""Replay of recorded sessions: what they would have cost under each policy."""
