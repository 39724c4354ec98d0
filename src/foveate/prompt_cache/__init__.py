"""Provider prompt caches: their rules, breakpoint placement, simulation, and explanations of cache misses."""
