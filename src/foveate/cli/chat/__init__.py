"""`foveate chat`: the command, at a terminal and without one."""
