"""What one process recorded: device work, steps and launches, plane by plane."""
