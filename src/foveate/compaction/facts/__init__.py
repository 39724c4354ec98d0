"""Facts of a conversation: extraction, ranking, and whether a text mentions them."""
