"""The engine: every request goes through the same steps, in the same order, and each may fail alone."""
