"""The Python face: a run that is opened once and asked, its answers, and two runs compared."""
