"""Token counts: local, by the upstream, and their calibration."""
