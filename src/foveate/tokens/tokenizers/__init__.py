"""Tokenizers: byte-pair encodings, fitted tokenizers for Claude, and estimates."""
