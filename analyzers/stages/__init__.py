"""Which pipeline stage worked when, and the bubble that a schedule cannot avoid."""
