"""Which session a request belongs to, and what is known of its turns."""
