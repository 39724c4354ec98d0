"""`foveate advise`: which settings would have saved most in recorded sessions."""
