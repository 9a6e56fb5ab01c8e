"""Runs one op of a recorded program again, as a script that needs nothing but JAX."""
