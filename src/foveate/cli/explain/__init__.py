"""`foveate explain`: traces of requests and causes of cache misses."""
