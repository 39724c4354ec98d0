"""Readers of recorded sessions, one module per format."""
