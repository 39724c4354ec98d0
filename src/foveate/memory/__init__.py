"""Memory: notes in files as a forest of nodes, of which a view shows what matters in few tokens."""
