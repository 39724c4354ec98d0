"""`foveate compactions`: list, show, undo and export compactions."""
