"""Callers and their credentials: who sends a request, and what its credentials may be used for."""
