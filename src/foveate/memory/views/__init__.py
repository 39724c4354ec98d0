"""Views: what is shown of a memory within a token limit."""
