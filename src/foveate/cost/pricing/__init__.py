"""Prices of models: tables, price files, custom prices, and the price of a call."""
