"""A pipeline's work and idle time: the document, and how page and terminal show it."""
