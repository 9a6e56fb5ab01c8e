"""When each device of a trace calls each collective, what it sends, and how long it waits."""
