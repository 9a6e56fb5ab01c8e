"""Serve a run's report and timeline to the browser of the same machine, and to nothing else."""
