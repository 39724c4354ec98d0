"""Parsers for Org and Markdown notes."""
