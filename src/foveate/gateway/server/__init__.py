"""Processes and connections: the HTTP server, worker processes, TLS and CORS."""
