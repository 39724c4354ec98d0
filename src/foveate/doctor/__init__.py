"""Checks of everything that the gateway needs."""
