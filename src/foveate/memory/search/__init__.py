"""Search in notes: BM25, embeddings, and their combination."""
