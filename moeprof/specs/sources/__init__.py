"""Models from elsewhere: a preset's name, a Hugging Face ``config.json``, a MaxText YAML file.

Start at `moeprof.specs.sources.load`.
"""
