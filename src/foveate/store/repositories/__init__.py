"""Implementations of the storage protocols of other packages, one module for each."""
