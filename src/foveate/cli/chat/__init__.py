"""`foveate chat`: the command, its terminal and its piped mode."""
