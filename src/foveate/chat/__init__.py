"""A conversation with a model through the gateway, in its own process."""
