"""Responses of providers: usage, streams, errors, rate limits and answers."""
