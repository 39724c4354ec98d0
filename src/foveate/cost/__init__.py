"""Costs of calls: prices, the ledger, spending caps and savings."""
