"""`foveate replay`: what recorded sessions would have cost under each policy."""
