"""What several patterns share."""
