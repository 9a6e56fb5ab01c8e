"""What changed between two runs: the document, and how page and terminal show it."""
