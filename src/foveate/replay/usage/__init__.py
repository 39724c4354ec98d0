"""Reports of usage by day, session or project, from the logs of agents and from the ledger."""
