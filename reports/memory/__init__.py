"""What a step holds in memory before it runs: the document, and how page and terminal show it."""
