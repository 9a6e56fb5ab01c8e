"""Question: what do the sections of docs/gpu.md say? One function per result file."""
