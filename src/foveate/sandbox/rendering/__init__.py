"""Renders generated responses in each API format, and reads from requests which response they want."""
