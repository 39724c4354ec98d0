"""Simulation of recorded calls: reconstruct what was sent, and run each policy on it."""
