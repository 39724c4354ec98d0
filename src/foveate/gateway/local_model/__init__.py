"""A small model on this machine, which needs no key."""
