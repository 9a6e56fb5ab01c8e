"""Question: does moeprof take of MaxText's command lines what MaxText takes, and plan what it runs?

    python tests/clients/maxtext_plans.py   # in a Python that has MaxText and moeprof

Each line is read by both. Prints the differences as JSON, one a line: keys that a projection reads
with two values, and lines that one of them takes and the other refuses; and where moeprof's table
of defaults differs from MaxText's base.yml.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from maxtext_training import ROOT, Place, environment

from moeprof.errors import MoeprofError
from moeprof.projector.calibrate import measured
from moeprof.specs.sources.document import MAXTEXT, known_keys
from moeprof.specs.sources.maxtext_command import configuration, installed_maxtext
from moeprof.specs.sources.maxtext_yaml import RUN_OPTIONS, default_values, read_mapping

DERIVED = {"num_slices", "mu_dtype", "eval_per_device_batch_size"}
"""Keys that MaxText fills in from others where they say nothing."""
OWN = "base_config: base.yml\nmodel_name: deepseek2-16b\nbase_emb_dim: 17\nlearning_rate: 1e-4\n"
LINES = (
    "",
    "model_name=deepseek2-16b per_device_batch_size=1 max_target_length=4096",
    "model_name=deepseek3-671b weight_dtype=bfloat16 sparse_matmul=False capacity_factor=1.25",
    "model_name=mixtral-8x7b override_model_config=True base_num_decoder_layers=3 megablox=0",
    "model_name=mixtral-8x7b base_num_decoder_layers=3",
    "model_name=mixtral-8x7b base_num_decoder_layers=32",
    "model_name=qwen3-30b-a3b num_experts=64",
    "model_name=llama3.1-8b-Instruct",
    "model_name=gpt-oss-20b attention=dot_product",
    "model_name=llama4-17b-16e",
    "remat_policy=minimal learning_rate=3e-5 steps=3",
    "sparse_matmul=off scan_layers=false",
    "max_target_length=abc",
    "sparse_matmul=maybe",
    "per_device_batch_size=",
    "per_device_batch_size=${steps} steps=3",
    "per_device_batch_size=${num_vocab_tiling}",
    "no_such_key=1",
    "own.yml capacity_factor=2",
)
BESIDE = ("skip_jax_distributed_system=true", "run_name=words", "log_config=false")


def differences() -> Iterator[dict[str, object]]:
    """All of them."""
    from maxtext.configs import pyconfig

    installed = installed_maxtext()
    assert installed is not None
    base = read_mapping(installed.configs / "base.yml")
    for key, value in default_values().items():
        if base.get(key) != value:
            yield {"table": key, "moeprof": value, "maxtext": base.get(key)}
    keys = (known_keys(MAXTEXT, "read") | {*RUN_OPTIONS, "hardware", "steps"}) - DERIVED
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.yml"
        own.write_text(OWN)
        for line in LINES:
            words = line.split()
            file = str(own if words[:1] == ["own.yml"] else installed.configs / "base.yml")
            words = [file, *words[words[:1] == ["own.yml"] :]]
            try:
                values = configuration(words, {}).values
            except MoeprofError:
                values = None
            try:
                theirs = pyconfig._initialize_pydantic(["train.py", *words, *BESIDE])
            except Exception:  # MaxText refuses by several kinds of errors
                theirs = None
            if (values is None) != (theirs is None):
                yield {"line": line, "moeprof": values is not None, "maxtext": theirs is not None}
            for key in sorted(keys & (values or {}).keys() if theirs else ()):
                other = getattr(theirs, key)
                other = getattr(other, "value", other)
                if values[key] != other and str(values[key]) != str(other or ""):
                    yield {"line": line, "key": key, "moeprof": values[key], "maxtext": other}


def compared_words(place: Place) -> tuple[list[str], list[str]]:
    """Faults and notes: what this file prints in a process of its own."""
    script = [place.python, __file__]
    done = subprocess.run(script, capture_output=True, text=True, env=environment(place, 0, 1))
    lines = done.stdout.splitlines()
    faults = [line for line in lines if line.startswith("{")]
    if not lines or not lines[-1].startswith("compared"):
        faults.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
    return faults, lines[-1:]


def compared_arguments(place: Place, run: Path) -> tuple[list[str], list[str]]:
    """Faults and notes: arguments of the step planned by the command of a run, and of that run."""
    plugin = Path(place.python).absolute().parents[1] / "cuda-plugin"
    if not (place.is_gpu or plugin.is_dir()):
        return [f"no {plugin}, which make maxtext-check makes"], []
    asked = ["memory", "--from", str(run), "--hardware", "h100_sxm", "--compile", "--json"]
    own = environment(place, 0, 1) | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(plugin)))}
    command = [place.python, "-m", "moeprof", *asked]
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=run.parent)
    if done.returncode:
        return [f"exit code {done.returncode}: {done.stderr[-300:]}"], []
    document = json.loads(done.stdout)
    (step,) = [each for each in document["programs"] if each["name"] == "train_step"]
    size, ran = step["plan"]["arguments_bytes"], measured(run).args_bytes
    faults = [] if size == ran else [f"arguments {size} B, in the run {ran} B"]
    return faults, [f"arguments {size:,} B, run here for {document['ran_s']:.0f} s"]


if __name__ == "__main__":
    for each in differences():
        print(json.dumps(each, default=str), flush=True)
    print("compared", len(LINES), flush=True)
