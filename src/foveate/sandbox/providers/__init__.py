"""The imitated providers: how each validates requests, and renders responses."""
