"""Launch calls of the host and the device work that they brought."""
