"""Out-of-memory messages: what failed, what fills the memory, and what to change."""
