"""What is alive at each moment of a step, per program that trains."""
