"""Who sends a request, with which credentials, and what these may be used for."""
