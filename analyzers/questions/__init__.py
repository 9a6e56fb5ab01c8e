"""The questions that moeprof answers about a run: one per file, each with its `QUESTION`."""
