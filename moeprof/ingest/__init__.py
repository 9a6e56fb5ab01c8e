"""Raw profile formats, bytes to tables: one format per file."""
