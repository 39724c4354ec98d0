"""How each family of models renders a request before it is tokenised: one file a family.

The renderings are reconstructed from recorded requests and their bills (November 2026); where a provider has
published its own, that is what is followed.
"""
