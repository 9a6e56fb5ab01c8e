"""Question: which program does a command run, and what changes where its devices are not there?

A file of Python, a module (``-m``), MaxText's own training, or the command of a run that was
captured. MaxText runs as it is, by its own main function: its words are the user's, but for those
that would read data, write files or wait for other hosts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof.errors import CompileError, TraceError
from moeprof.projector.batches import largest_of
from moeprof.specs.hardware import hardware_of
from moeprof.specs.sources.maxtext_command import Configuration, configuration, installed_maxtext

if TYPE_CHECKING:
    from moeprof.projector.any_step.script import ScriptPlan

MAXTEXT_MODULE = "maxtext.trainers.pre_train.train"
_MAXTEXT_FILES = ("maxtext/trainers/pre_train/train.py", "MaxText/train.py")
_MODULES = (MAXTEXT_MODULE, "MaxText.train")
_MAXTEXT_SECONDS = 300.0
"""Its imports and the tracing of its step take most of a minute on two busy cores."""
_STAND_INS = ("cudnn_flash_te", "cudnn_flash_jax")
_FLASH = "flash"
_WHOLE_SCORES = "dot_product"
_GPU = ("gpu", "gpu_multiprocess")
# What would read data, write files or ask other hosts; none of it is in the programs of a step.
_QUIET: dict[str, object] = {
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "load_parameters_path": "",
    "load_full_state_path": "",
    "jax_cache_dir": "",
    "compiled_trainstep_file": "",
    "skip_jax_distributed_system": True,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "enable_tensorboard": False,
    "use_vertex_tensorboard": False,
    "profiler": "",
    "metrics_file": "",
    "gcs_metrics": False,
    "save_config_to_gcs": False,
    "dump_hlo": False,
    "dump_jaxpr": False,
    "log_config": False,
}
_TELLING = ("dataset_type", "compiled_trainstep_file")
"""Of these: what a reader should know of, if it was set otherwise."""


@dataclass(frozen=True)
class Command:
    """What Python is asked to run: a file, or a module, and its arguments.

    ``devices`` and ``hardware`` are those of the run that it was read from, where it says them.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    devices: int | None = None
    hardware: str | None = None

    @property
    def maxtext(self) -> tuple[str, ...]:
        """``FILE key=value …`` where it is MaxText's training; empty: another program."""
        file = Path(self.target).as_posix()
        if not (self.target in _MODULES if self.is_module else file.endswith(_MAXTEXT_FILES)):
            return ()
        has_file = bool(self.arguments) and self.arguments[0].endswith((".yml", ".yaml"))
        return self.arguments if has_file else ("base.yml", *self.arguments)


def recorded_command(run: Path) -> Command:
    """The command of a run that `moeprof capture` recorded, with its devices.

    Raises:
        TraceError: there is no such run, or its record cannot be read or has no script's command.
    """
    from moeprof.ingest.sources.run_record import meta_damage, read_meta
    from moeprof.recordings import newest_recording

    folder = newest_recording(run)
    if not folder.exists():
        raise TraceError(f"{run}: no such file or folder; give a run folder of `moeprof capture`")
    if damage := meta_damage(folder):
        raise TraceError(
            f"memory --from {run}: expected the command of a script in {folder / 'meta.json'}, "
            f"found damage: {damage[0]}. Give the program itself, by --script or --maxtext."
        )
    meta = read_meta(folder) or {}
    argv = meta.get("argv")
    words = [str(word) for word in argv[1:]] if isinstance(argv, list) else []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2:] if words[0] in ("-X", "-W") else words[1:]
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if not words or words[0] == "-c" or not (is_module or words[0].endswith(".py")):
        raise TraceError(
            f"memory --from {run}: expected the command of a script in {folder / 'meta.json'}, as "
            f"`moeprof capture` writes it, found {'another' if words else 'none'}. Give the "
            "program itself, by --script or --maxtext."
        )
    return Command(words[0], is_module, tuple(words[1:]), *_devices_of(meta))


def _devices_of(meta: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """How many devices a run had, and the key of their kind, as its first process saw them."""
    processes = meta.get("processes")
    first = processes[0] if isinstance(processes, list) and processes else {}
    if not isinstance(first, dict):
        return None, None
    number, devices = first.get("global_devices"), first.get("devices")
    kinds = [each.get("kind") for each in devices or () if isinstance(each, dict)]
    known = hardware_of(str(kinds[0])) if kinds else None
    is_count = isinstance(number, int) and not isinstance(number, bool) and number > 0
    return (number if is_count else None), (known.key if known else None)


def plan_maxtext(
    words: Sequence[str],
    *,
    hardware: str = "h100_sxm",
    devices: int,
    mem_fraction: float | None = None,
    programs: int = 2,
    seconds: float = _MAXTEXT_SECONDS,
    timeout_s: float = 900.0,
) -> ScriptPlan:
    """Run MaxText's training on devices that are not there, and compile what it runs first.

    Args:
        words: a file of MaxText's, then ``key=value`` as on its command line.
        hardware: as of `plan_script`, and so are all others.
        devices: how many; each host of GPUs is a slice of MaxText's, as JAX reports hosts.
        mem_fraction: share of a device for XLA.
        programs: after so many, once its step was given its own results, it is run no further.
        seconds: nor after so long.
        timeout_s: of the compiler, of each program.

    Raises:
        CompileError: MaxText is not installed, or it or the compiler fails.
        SelectionError: a word is none of MaxText's, or as of `plan_script`.
        SpecError: a file of MaxText's cannot be read.
    """
    from moeprof.projector.any_step.script import plan_script  # the closed form needs none of it

    found = configuration(words)
    if installed_maxtext() is None:
        raise CompileError(
            f"memory --maxtext --compile: expected MaxText in the environment of {sys.executable}, "
            "found none. Install moeprof where MaxText trains, or maxtext here (docs/maxtext.md)."
        )
    _check_stand_in(found)
    with tempfile.TemporaryDirectory(prefix="moeprof-maxtext-") as folder:
        changed = {**words_to_plan(found), "base_output_directory": folder}
        own = [f"{key}={value}" for key, value in changed.items()]
        plan = plan_script(
            MAXTEXT_MODULE,
            [os.path.abspath(found.path), *words[1:], *own],
            is_module=True,
            environment=_environment(changed),
            hardware=hardware,
            devices=devices,
            mem_fraction=mem_fraction,
            programs=programs,
            seconds=seconds,
            timeout_s=timeout_s,
        )
    return replace(plan, notes=(*maxtext_notes(found, changed), *plan.notes))


def _check_stand_in(found: Configuration) -> None:
    """Refuse attention that nothing stands in for.

    Raises:
        CompileError: it is NVIDIA's, with sinks, which MaxText's other kernels do not have.
    """
    attention = found.values.get("attention")
    if attention in _STAND_INS and found.values.get("attention_sink"):
        raise CompileError(
            f"memory --maxtext --compile: attention={attention} with attention_sink: NVIDIA's "
            "kernel cannot be compiled without a GPU, and no other of MaxText's has sinks. With "
            "attention=dot_product, where every score lies in memory, the plan is an upper bound."
        )


_PER_DEVICE = "per_device_batch_size"


def plan_largest_batch(
    words: Sequence[str], start: int, **options: Any
) -> tuple[ScriptPlan, tuple[tuple[int, str], ...]]:
    """The plan of the largest ``per_device_batch_size`` that fits, and all sizes that were tried.

    Args:
        words: as of `plan_maxtext`.
        start: the first that is tried, as the closed form has it.
        options: of `plan_maxtext`.

    Returns:
        The plan, of the smallest that was tried where none fits, and (size, verdict) in order.

    Raises:
        As `plan_maxtext`.
    """
    _, plan, tried = largest_of(
        start,
        lambda size: plan_maxtext([*words, f"{_PER_DEVICE}={size}"], **options),
        lambda plan: plan.verdict,
    )
    return plan, tried


def words_to_plan(found: Configuration) -> dict[str, object]:
    """Words that are added behind the user's: what MaxText would do beside training is off."""
    values = found.values
    changed = {key: new for key, new in _QUIET.items() if key in values and values[key] != new}
    if not values.get("run_name"):
        changed["run_name"] = "plan"
    if values.get("hardware") not in _GPU:
        changed["hardware"] = "gpu"
    if values.get("attention") in _STAND_INS:
        changed["attention"] = _FLASH
    return changed


def _environment(changed: Mapping[str, object]) -> dict[str, str | None]:
    """Variables of MaxText's process; None: not there, as MaxText refuses a key from two places."""
    off = {name: None for key in changed if (name := f"M_{key.upper()}") in os.environ}
    return {"DECOUPLE_GCLOUD": os.environ.get("DECOUPLE_GCLOUD", "TRUE"), **off}


def maxtext_notes(found: Configuration, changed: Mapping[str, object]) -> Iterator[str]:
    """Which attention a run has and which is planned, and what was changed to plan it."""
    attention = found.values.get("attention")
    if attention in _STAND_INS:
        yield (
            f"attention={attention}: NVIDIA's kernel cannot be compiled without a GPU, so "
            "MaxText's attention=flash stands in, which keeps the same of a layer; workspace of "
            "cuDNN's is not known"
        )
    elif attention == _WHOLE_SCORES:
        yield "attention=dot_product: every score lies in memory, here as in a run"
    else:
        yield (
            f"attention={attention}: on GPUs a Pallas kernel by Triton (autoselected below 128 "
            "tokens: whole scores), here as in a run"
        )
    for key in _TELLING:
        if key in changed and found.values.get(key):
            new = changed[key] or "left out"
            yield f"{key} {found.values[key]}: {new} here, of the same shapes"
    yield "not run: restoring, evaluation, checkpoints, logs of metrics, profiles"
