"""Work after responses: compaction, keep-alive, cache misses, traces, archived requests and rate limits."""
