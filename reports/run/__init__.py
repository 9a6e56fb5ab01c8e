"""What is known of a run: its document, and how page and terminal show it."""
