"""What calls cost: prices of models, the ledger of what was billed, and caps that are held before a call."""
