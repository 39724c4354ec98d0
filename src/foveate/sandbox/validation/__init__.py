"""Validates requests by the rules of each provider."""
