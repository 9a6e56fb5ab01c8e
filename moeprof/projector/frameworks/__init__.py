"""Programs that train, a folder each: what they hold, what they can be told, what would help."""
