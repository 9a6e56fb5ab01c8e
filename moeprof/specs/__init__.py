"""Models, plans and strategies as values."""
