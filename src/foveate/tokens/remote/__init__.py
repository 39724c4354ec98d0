"""Counters that ask a provider or a model server."""
