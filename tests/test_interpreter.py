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


RARELY = """
import atexit, gc
from moeprof.interpreter import own_the_process
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # what is registered last runs first
own_the_process()
own_the_process()
print(gc.isenabled(), gc.get_threshold()[0])
"""


def test_a_command_searches_for_garbage_rarely_and_not_at_its_end():
    done = subprocess.run([sys.executable, "-c", RARELY], capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"50000", b"True"]


KEPT = """
import sys
from pathlib import Path
from moeprof.interpreter import own_the_process

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "own":
    own_the_process()
before = resident()
for _ in range(3):
    blocks = [b"x" * (8 << 20) for _ in range(4)]
    del blocks
print(resident() - before > 16 << 20)
"""


def kept_of_32_mib(how: str, **variables: str) -> str:
    own = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    command, environment = [sys.executable, "-c", KEPT, how], {**own, **variables}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    return done.stdout.decode().strip()


def test_a_command_keeps_memory_that_is_freed_for_what_comes_next():
    assert kept_of_32_mib("own") == "True"
    assert kept_of_32_mib("other") == "False"
    assert kept_of_32_mib("own", MALLOC_TRIM_THRESHOLD_="131072") == "False"
