"""``python -m moeprof``: the `moeprof` command."""

from moeprof.cli.main import main

main()
