"""What Python does for moeprof."""

import json
import os
import subprocess
import sys

CODE = """
import json, os, threading, pathlib
from moeprof.interpreter import import_numpy
import_numpy()
import numpy
tasks = pathlib.Path("/proc/self/task")
print(json.dumps([os.environ.get("OPENBLAS_NUM_THREADS"), len(list(tasks.iterdir()))]))
"""


def told(**environment: str) -> list[object]:
    own = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, check=True, env=own | environment
    )
    return json.loads(done.stdout)


def test_numpy_begins_no_threads_and_nothing_of_that_stays():
    assert told() == [None, 1]


def test_what_the_user_set_stays():
    variable, _ = told(OPENBLAS_NUM_THREADS="2")
    assert variable == "2"
