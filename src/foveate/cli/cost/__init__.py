"""`foveate cost`: reports, caps, exports and corrections."""
