"""Rendering of requests by each family of models, before they are tokenised.

The rules are reconstructed from recorded requests and their usage (November 2026), unless a provider has
published them.
"""
