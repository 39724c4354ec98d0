"""What calls may cost and do cost: ceilings, admission under caps, and charges."""
