"""Metrics: their definitions, values and labels."""
