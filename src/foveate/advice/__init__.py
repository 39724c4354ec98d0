"""Advice on the cost of recorded sessions: where the money went, and which settings would have saved most."""
