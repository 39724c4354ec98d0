"""Conversations with a model through the gateway, in the same process."""
