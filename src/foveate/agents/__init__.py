"""Coding agents: how each is pointed at the gateway, which are installed, and what a run of one cost."""
