"""How each family of models renders a request before it is tokenised.

The rules are reconstructed from recorded requests and their usage (November 2026), unless a provider has
published them.
"""
