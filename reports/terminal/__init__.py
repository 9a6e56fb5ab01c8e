"""What a terminal of 80 columns shows, a file per command."""
