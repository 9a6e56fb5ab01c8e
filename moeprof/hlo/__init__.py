"""Compiled programs as values: shapes, instructions, and how instructions hang together."""
