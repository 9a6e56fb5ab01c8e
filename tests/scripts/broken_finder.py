"""Trains `foreign_moe.py`, while what would find its routers fails. Arguments: those of it."""

import runpy
from pathlib import Path

import jax  # noqa: F401  # what watches a script comes with it

from moeprof.recording.choices import stand_in


def fail(_):
    raise KeyError("num_consts")


stand_in.find = fail
runpy.run_path(str(Path(__file__).with_name("foreign_moe.py")))
