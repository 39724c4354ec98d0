"""Replay a recorded session through a gateway to the sandbox."""
