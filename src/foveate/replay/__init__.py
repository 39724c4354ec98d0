"""Recorded sessions in; out comes what they would have cost under each policy."""
