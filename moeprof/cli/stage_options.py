"""Question: what does the user say about the work of a pipeline's stages?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

if TYPE_CHECKING:
    from moeprof.specs.schedule_play import StageWork

_Function = TypeVar("_Function", bound=Callable[..., object])
_NS_PER_MS = 1_000_000
_GIB = 2**30
_TIME = click.FloatRange(1e-3, 1e9)
_EXTRA = click.FloatRange(0, 1e9)


class StageOptions(TypedDict):
    """What `describes_stages` hands to a command."""

    microbatch_ms: float
    forward_ms: float | None
    backward_ms: float | None
    weight_ms: float | None
    stage_ms: tuple[float, ...] | None
    embedding_ms: float
    head_ms: float
    p2p_ms: float
    p2p_blocks: bool
    is_forward_only: bool
    activation_gib: tuple[float, ...] | None


def describes_stages(command: _Function) -> _Function:
    """Add the options of `StageOptions`."""
    options = (
        click.option(
            "--microbatch-ms",
            type=_TIME,
            default=1.0,
            show_default=True,
            help="Assumed work of one stage for one microbatch, forward and backward.",
        ),
        click.option("--forward-ms", type=_TIME, help="Forward work of it. Default: a third."),
        click.option("--backward-ms", type=_TIME, help="Backward work of it. Default: two thirds."),
        click.option(
            "--weight-ms",
            type=_TIME,
            help="Of backward, the gradients of weights, which zb-h1, zb-h2, zbv, v-half and v-min "
            "run apart. Default: half.",
        ),
        click.option(
            "--stage-ms",
            callback=_numbers,
            metavar="MS,MS,…",
            help="Work of each stage in place of one for all; forward and backward keep their "
            "parts of it.",
        ),
        click.option(
            "--embedding-ms",
            type=_EXTRA,
            default=0.0,
            help="Work that the first layers do on top. Default: 0.",
        ),
        click.option(
            "--head-ms",
            type=_EXTRA,
            default=0.0,
            help="Work that the last layers do on top: head and loss. Default: 0.",
        ),
        click.option(
            "--p2p-ms",
            type=_EXTRA,
            default=0.0,
            help="Time that a result takes to the next stage. Default: 0.",
        ),
        click.option(
            "--p2p-blocks", is_flag=True, help="The sender of a result does nothing else meanwhile."
        ),
        click.option(
            "--forward-only", "is_forward_only", is_flag=True, help="Project no backward work."
        ),
        click.option(
            "--activation-gib",
            callback=_numbers,
            metavar="GIB[,GIB,…]",
            help="Activations, in GiB, that a stage saves for one microbatch, or each of them: "
            "shows what they hold.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def stage_work(given: StageOptions) -> StageWork:
    """The work of the stages, in whole ns.

    Raises:
        click.UsageError: gradients of weights take all of backward, or more.
    """
    from moeprof.specs.schedule_play import StageWork

    forward = given["forward_ms"] or given["microbatch_ms"] / 3
    backward = given["backward_ms"] or given["microbatch_ms"] * 2 / 3
    weight = given["weight_ms"] or backward / 2
    if weight >= backward:
        raise click.UsageError(
            f"--weight-ms is part of --backward-ms: expected less than {backward:g}, "
            f"found {weight:g}."
        )
    shares = (_ns(forward), _ns(backward) - _ns(weight), _ns(weight))
    if not any(given[name] for name in ("forward_ms", "backward_ms", "weight_ms")):
        shares = (1, 1, 1)  # exactly, whatever rounding to ns makes of a third
    total = forward + backward
    if given["is_forward_only"]:
        shares, total = (1, 0, 0), given["forward_ms"] or given["microbatch_ms"]
    return StageWork(
        tuple(map(_ns, given["stage_ms"] or (total,))),
        shares,
        embedding_ns=_ns(given["embedding_ms"]),
        head_ns=_ns(given["head_ms"]),
        transfer_ns=_ns(given["p2p_ms"]),
        is_overlapped=not given["p2p_blocks"],
    )


def activation_bytes(given: StageOptions, stages: int) -> tuple[float, ...]:
    """What each stage saves for one microbatch; empty where it is not said.

    Raises:
        click.UsageError: there are neither as many sizes as stages nor one.
    """
    sizes = given["activation_gib"] or ()
    if len(sizes) == 1:
        sizes = sizes * stages
    if sizes and len(sizes) != stages:
        raise click.UsageError(
            f"--activation-gib: expected {stages} sizes, one per stage, or one for all; "
            f"found {len(sizes)}."
        )
    return tuple(size * _GIB for size in sizes)


def source_of(work: StageWork) -> str:
    """Where a projection's times come from, for its heading."""
    totals = work.total_ns if len(set(work.total_ns)) > 1 else work.total_ns[:1]
    told = ", ".join(f"{total / _NS_PER_MS:g}" for total in totals)
    return f"{told} ms of work per microbatch and stage, assumed"


def _ns(ms: float) -> int:
    return round(ms * _NS_PER_MS)


def _numbers(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(1e-3 <= number <= 1e9 for number in numbers):
        raise click.BadParameter(
            f"expected numbers from 0.001 to 1e9 with commas between, such as 1,1,1.5, "
            f"found {text!r}."
        )
    return numbers
