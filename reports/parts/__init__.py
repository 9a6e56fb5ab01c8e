"""What the reports of several subjects are made of."""
