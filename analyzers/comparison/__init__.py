"""What changed between two runs: ops matched by their place in the model, changes by cause."""
