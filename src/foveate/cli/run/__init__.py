"""`foveate run`: start an agent that uses the gateway, and report what it cost."""
