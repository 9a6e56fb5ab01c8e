"""Known reasons for a slow or large MoE step: one per file, each with its `PATTERN`."""
