"""`moeprof memory search`: plans for a number of devices that fit, ranked by estimated time."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import click

from moeprof.cli.progress import working
from moeprof.errors import SelectionError

if TYPE_CHECKING:
    from moeprof.cli.memory.options import RunOptions
    from moeprof.projector.search.space import Space
    from moeprof.projector.setting import Setting
    from moeprof.specs.hardware import HardwareSpec
    from moeprof.specs.sources.document import LoadedModel

_AXES = {
    "ep": "expert",
    "fsdp": "fsdp",
    "dp": "data",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "vpp": "virtual",
    "etp": "expert_tensor",
}
_OPTIONS = (
    click.option("--model", metavar="KEY|FILE", help="As of `moeprof memory`."),
    click.option("--hardware", metavar="KEY", help="As of `moeprof memory`."),
    click.option("--devices", type=click.IntRange(1), help="How many there are."),
    click.option("--seq", type=click.IntRange(1), help="Tokens of a sequence. Default: 4096."),
    click.option("--global-batch", type=click.IntRange(1), help="Sequences of a step."),
    click.option(
        "--pdbs",
        type=click.IntRange(1),
        help="Sequences per device and microbatch. Default: the largest that fits; with "
        "--global-batch each of 1, 2, 4, 8, 16.",
    ),
    click.option(
        "--strategy",
        multiple=True,
        metavar="NAME…|all",
        help="As of `moeprof memory`. Default: all.",
    ),
    click.option(
        "--remat",
        multiple=True,
        metavar="POLICY",
        help="Each one is compared. Default: full, in Megatron none and full.",
    ),
    click.option("--world", metavar="NAME", help="maxtext, bundled or megatron."),
    click.option("--max-ep", type=click.IntRange(1), help="No more expert parallelism than this."),
    *(
        click.option(f"--{name}", metavar="N,…", help=f"Only these degrees of {axis}.")
        for name, axis in _AXES.items()
    ),
    click.option("--weight-dtype", metavar="DTYPE", help="bf16, fp32 or the full name."),
    click.option("--mem-fraction", type=float, help="Share of the device that XLA may take."),
    click.option("--sync-free", type=int, default=0, help="Megatron: sync-free MoE, level 0 to 3."),
    click.option("--overlap", is_flag=True, help="Megatron: exchange beside another microbatch."),
    click.option("--what-if", "asks_what_if", is_flag=True, help="What optimisations would buy."),
    click.option("--top", type=click.IntRange(1), default=10, show_default=True),
    click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.search/1."),
)


@dataclass(frozen=True)
class SearchOptions:
    """What was said about the search; None and empty: nothing."""

    model: str | None
    hardware: str | None
    devices: int | None
    seq: int | None
    global_batch: int | None
    pdbs: int | None
    strategy: tuple[str, ...]
    remat: tuple[str, ...]
    world: str | None
    max_ep: int | None
    ep: str | None
    fsdp: str | None
    dp: str | None
    tp: str | None
    cp: str | None
    pp: str | None
    vpp: str | None
    etp: str | None
    weight_dtype: str | None
    mem_fraction: float | None
    sync_free: int
    overlap: bool


def _with_options(function: click.decorators.FC) -> click.decorators.FC:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("search")
@_with_options
def command(asks_what_if: bool, top: int, as_json: bool, **options: object) -> None:
    """Plans that fit, ranked by the estimated time of a step.

    Every way to spread the model over the devices is checked, projected and estimated. The estimate
    is good for an order: rates of kernels and links, and what hides behind what.

    Example:

        moeprof memory search --model deepseek_v3 --hardware mi355x --devices 64 --what-if
    """
    from moeprof.cli.memory.setting import as_usage
    from moeprof.projector.search import search
    from moeprof.projector.step_time.ground import Tuning
    from moeprof.projector.what_if import what_if
    from moeprof.reports.search.document import document_of, to_json

    asked = SearchOptions(**options)  # type: ignore[arg-type]
    model_key, space, said = _space(asked)
    with as_usage():
        tuning = Tuning(asked.sync_free, asked.overlap)
        with working("projecting plans") as work:
            result = search(
                space, top, tuning, tell=work.counting("projecting plans, by strategy and remat")
            )
    effects = None
    if asks_what_if:
        effects = what_if(result.found[0].setting, tuning) if result.found else ()
    document = document_of(result, model_key, said, tuning, effects)
    if as_json:
        click.echo(to_json(document))
        return
    from rich.console import Console

    from moeprof.reports.search.terminal import drawn

    console = Console(highlight=False)
    console.print(drawn(document, console.width), soft_wrap=True)


def _space(asked: SearchOptions) -> tuple[str, Space, list[str]]:
    """The model's key, what is searched, and what was taken where nothing was said."""
    from moeprof.cli.memory.setting import HARDWARE, as_usage, check_world, strategies_of
    from moeprof.projector.search.space import Space
    from moeprof.specs.hardware import load_hardware
    from moeprof.specs.presets import preset_names
    from moeprof.specs.remat import Remat
    from moeprof.specs.sources import load_model

    if asked.model is None or asked.devices is None:
        missing = " and ".join(
            f"--{name}" for name in ("model", "devices") if getattr(asked, name) is None
        )
        raise SelectionError(
            f"memory search: expected {missing}, found none. "
            "For example: --model deepseek_v3 --devices 64."
        )
    loaded = load_model(asked.model)
    said = [] if loaded.origin in preset_names() else list(loaded.notes)
    with as_usage():
        hardware = load_hardware(asked.hardware or HARDWARE)
        if asked.hardware is None:
            said.append(f"Not given, so taken: hardware {HARDWARE}.")
        run = _run_options(asked)
        world = asked.world or "maxtext"
        base = _base(asked, run, loaded, world, hardware)
        tuned = {"sync_free": asked.sync_free or None, "overlap": asked.overlap or None}
        check_world({**vars(asked), **tuned}, world)
        strategies = strategies_of(run, world, base, said)
        policies = asked.remat or (("none", "full") if world == "megatron" else ("full",))
        space = Space(
            base=base,
            devices=asked.devices,
            strategies=strategies,
            remats=tuple(Remat(policy) for policy in dict.fromkeys(policies)),
            allowed=_allowed(asked),
            global_batch=asked.global_batch,
            pdbs=asked.pdbs,
            leaves_room=asked.mem_fraction is None,
        )
    return loaded.origin, space, said


def _base(
    asked: SearchOptions,
    run: RunOptions,
    loaded: LoadedModel,
    world: str,
    hardware: HardwareSpec,
) -> Setting:
    """What all plans share."""
    from moeprof.cli.memory.setting import precision_of
    from moeprof.projector.setting import Setting, usual_of
    from moeprof.specs.plan import ParallelPlan
    from moeprof.specs.strategy import Strategy

    shared = Setting(
        model=loaded.model,
        plan=ParallelPlan(),
        strategy=Strategy("sparse-gmm"),
        hardware=hardware,
        sequence=asked.seq or 4096,
        world=world,
        schedule="1f1b" if world == "megatron" else "circular",
        precision=precision_of(run, world, loaded),
        **usual_of(hardware),  # type: ignore[arg-type]
    )
    if asked.mem_fraction is None:
        return shared
    return replace(shared, mem_fraction=asked.mem_fraction)


def _run_options(asked: SearchOptions) -> RunOptions:
    """The same as options of `moeprof memory`, for what both read alike."""
    from moeprof.cli.memory.options import RunOptions

    nothing: dict[str, object] = {field.name: None for field in fields(RunOptions)}
    nothing |= {"strategy": asked.strategy, "offload": (), "weight_dtype": asked.weight_dtype}
    return RunOptions(**nothing)  # type: ignore[arg-type]


def _allowed(asked: SearchOptions) -> dict[str, frozenset[int]]:
    """Degrees that were asked for, by axis."""
    from moeprof.cli.memory.plan import read_counts
    from moeprof.specs.model import divisors

    allowed: dict[str, frozenset[int]] = {}
    if asked.world == "bundled":  # its mesh has three axes
        allowed |= dict.fromkeys(("tensor", "context", "pipeline"), frozenset({1}))
    for name, axis in _AXES.items():
        text = getattr(asked, name)
        if text is not None:
            allowed[axis] = frozenset(read_counts(f"--{name}", text))
    if asked.max_ep is not None:
        below = allowed.get("expert", frozenset(divisors(asked.devices or 1)))
        allowed["expert"] = frozenset(degree for degree in below if degree <= asked.max_ep)
    return allowed
