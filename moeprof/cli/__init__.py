"""Command line: one file per command, wired together here and imported by nothing."""
