"""Requests as a provider's cache sees them."""
