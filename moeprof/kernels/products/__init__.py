"""Grouped products: operation, primitive, and what each platform runs."""
