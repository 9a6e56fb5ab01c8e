"""Plans that fit, ranked: the document, and how the terminal shows it."""
