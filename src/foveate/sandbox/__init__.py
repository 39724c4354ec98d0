"""A strict stand-in for the providers, for people and tests that have no key."""
