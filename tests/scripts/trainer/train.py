"""Prints everything that a script can know about how it is run. Uses no JAX."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys


class Config:
    """Pickled by reference to ``__main__``."""

    def __init__(self, layers):
        self.layers = layers


def layers_of(config):
    return config.layers, __name__


def main():
    spec = globals()["__spec__"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(layers_of, (Config(4),))
    report = [
        sys.executable,
        "-c",
        "import json,os,sys; print(json.dumps([sys.path, dict(os.environ)]))",
    ]
    path, environment = json.loads(subprocess.check_output(report))
    about = {
        "name": __name__,
        "file": __file__,
        "spec": spec and spec.name,
        "argv": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "path_of_a_program_it_starts": path,
        "environment_of_a_program_it_starts": environment,
        "pickled": pickle.loads(pickle.dumps(Config(2))).layers,
        "spawned": spawned,
        "stdin": sys.stdin.read(),
        "is_a_terminal": sys.stdout.isatty(),
        "jax_is_imported": "jax" in sys.modules,
        "main_module": sorted(vars(sys.modules["__main__"])),
    }
    print(json.dumps(about, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
