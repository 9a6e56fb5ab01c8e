"""Analyzers: one question per file, pure functions from tables to an `Analysis`."""
