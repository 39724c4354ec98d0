"""Pages by subject: lists, and the pages of one agent, session or compaction."""
