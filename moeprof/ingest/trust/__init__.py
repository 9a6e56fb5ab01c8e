"""How far the input can be trusted, and what a fault of it would falsify."""
