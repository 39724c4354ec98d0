"""Placement of cache breakpoints, from forecasts of when and what the next request reads."""
