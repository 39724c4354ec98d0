"""The cost of calls before and after they are made: ceilings, admission under caps, and charges."""
