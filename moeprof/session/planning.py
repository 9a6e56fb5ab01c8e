"""Question: what fits on which devices, asked in Python before anything runs?

    import moeprof

    found = moeprof.memory("deepseek_v3", hardware="mi355x", ep=8, fsdp=8)
    print(found)
    moeprof.search("deepseek_v3", hardware="mi355x", devices=64).plans

The closed form of `moeprof memory` and `moeprof memory search`: no device and no JAX is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from moeprof.errors import SelectionError
from moeprof.projector.answer import Projecting, answer
from moeprof.projector.memory import project
from moeprof.projector.request import as_usage, wanted
from moeprof.projector.request.plan import DEGREES, SHARED, Request
from moeprof.projector.request.search import SearchRequest
from moeprof.projector.search.space import LIMITED
from moeprof.reports.memory import document as memory_document
from moeprof.reports.memory import words
from moeprof.reports.search import document as search_document

if TYPE_CHECKING:
    import pandas as pd

    from moeprof.reports.memory.document import MemoryDocument, MemoryRow
    from moeprof.reports.search.document import PlanInfo, SearchDocument

WIDTH = 80
_Asked = TypeVar("_Asked", Request, SearchRequest)
_LEAST = dict.fromkeys(DEGREES, -1) | {"recomputed_layers": 0, "sync_free": 0, "compile_top": 0}
"""What whole numbers may be at least, where that is not 1; -1: what is left of the devices."""
_FORMER = {"world": "framework", "overload": "imbalance"}
"""What options were called before."""
_CELLS = (
    "strategy",
    "pdbs",
    "verdict",
    "args_bytes",
    "temp_bytes",
    "pool_bytes",
    "outside_bytes",
    "outside_limit_bytes",
    "total_bytes",
    "over_bytes",
    "breaks_first",
)
_PHASES = (
    *("name", "verdict", "args_bytes", "temp_bytes", "outside_bytes", "pool_bytes"),
    *("over_bytes", "host_bytes", "host_verdict"),
)
_PLANS = (
    *("rank", "strategy", "remat", "pdbs", "microbatches", "schedule", "verdict", "margin"),
    *("args_bytes", "temp_bytes", "outside_bytes", "pool_bytes", "seconds"),
    *("tokens_per_s_per_device", "mfu", "bubble"),
)
_RANGES = ("seconds", "tokens_per_s_per_device", "mfu")
"""Columns with two more, of the ends of their ranges."""
_PLAN_COLUMNS = (
    *_PLANS[:3],
    *LIMITED,
    *(n + end for n in _PLANS[3:] for end in (("", "_low", "_high") if n in _RANGES else ("",))),
    *("compiled_verdict", "compiled_bytes_low", "compiled_bytes_high"),
)


def memory(
    model: str | Path | None = None,
    *,
    detail: str | None = None,
    correction: str | Path | None = None,
    **said: Any,
) -> MemoryPlan:
    """What fits: weights, the arena of a step, what lies beside it, per strategy and pdbs.

    Args:
        model: a name of ``moeprof models``, a Hugging Face config.json or a MaxText YAML.
        detail: ``STRATEGY@PDBS``, the cell that is shown in full.
        correction: a file that ``moeprof memory --calibrate RUN --correction FILE`` stored.
        said: the options of ``moeprof memory`` by their names, with ``_`` for ``-``: ``hardware``,
            ``devices``, ``ep``, ``fsdp``, ``seq``, ``framework``… Lists may be lists. In place of
            a model ``maxtext=["base.yml", "model_name=mixtral-8x7b"]``, MaxText's command line.

    Raises:
        SelectionError: an option is unknown, or cannot be.
        SpecError: the model's configuration or the correction cannot be read.

    Example:
        >>> moeprof.memory("deepseek_v3", hardware="mi355x", ep=8, fsdp=8).largest_pdbs
    """
    named = None if model is None else str(model)
    asked = wanted(_request(Request, {"model": named, **said}))
    projecting: Projecting = project
    if correction is not None:
        from moeprof.projector.correction import correcting

        projecting = correcting(project, Path(correction))
        asked = replace(asked, searched_by=(*asked.searched_by, "--correction", str(correction)))
    with as_usage():
        found = answer(asked, detail, projecting)
    return MemoryPlan(memory_document.document_of(found))


def search(
    model: str | Path | None = None,
    devices: int | None = None,
    *,
    top: int = 10,
    what_if: bool = False,
    rank_by: str | None = None,
    correction: str | Path | None = None,
    compile_top: int = 0,
    **said: Any,
) -> PlanSearch:
    """Plans for a number of devices that fit, ranked by fit, or by time where that is known.

    Args:
        model: as of `memory`; in its place ``maxtext``, as there.
        devices: how many there are, which cannot be left out.
        top: how many plans to give.
        what_if: what optimisations would buy the best of them, too.
        rank_by: ``time`` or ``fit``; None: time where rates are measured or calibrated for the
            framework on the device, else fit.
        correction: a file that ``moeprof memory --calibrate RUN --correction FILE`` stored.
        compile_top: so many of the best are laid out by XLA's compiler (the bundled model's step).
        said: the options of ``moeprof memory search`` by their names, with ``_`` for ``-``.

    Raises:
        SelectionError: an option is unknown, or cannot be.
        SpecError: the model's configuration or the correction cannot be read.
        CompileError: the compiler is asked for and not installed.

    Example:
        >>> moeprof.search("deepseek_v3", 64, hardware="mi355x").plans
    """
    from moeprof.session.plan_search import Extras, answered

    said = {"model": None if model is None else str(model), "devices": devices, **said}
    extras = Extras(
        _whole("top", top),
        what_if,
        rank_by,
        None if correction is None else Path(correction),
        _whole("compile_top", compile_top),
    )
    return PlanSearch(answered(_request(SearchRequest, said), extras))


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPlan:
    """What a run needs of one device, in closed form, per strategy and batch per device (pdbs).

    ``document`` is that of ``moeprof memory --json``; all else is read off it. Tables have a row
    each, with bytes in columns that end in ``_bytes``; a size that cannot be told is missing.
    """

    document: MemoryDocument

    @property
    def framework(self) -> str:
        """Whose program the accounts are of."""
        return str(self.document["inputs"]["framework"])

    @property
    def build(self) -> str | None:
        """Which build of it; None: there is one."""
        build = self.document["inputs"]["build"]
        return None if build is None else str(build)

    @property
    def shown(self) -> tuple[str, int | None]:
        """The cell that `verdict`, `components`, `stages` and `notes` are of: strategy, pdbs."""
        return self.document["detail"]["strategy"], self.document["detail"]["pdbs"]

    @property
    def verdict(self) -> str:
        """``fits``, ``borderline``, ``oom`` or ``unknown``."""
        return self._row["verdict"]

    @property
    def fits(self) -> bool | None:
        """Whether both pools suffice, however narrowly; None: it cannot be told.

        A borderline plan is True or False by its projected size alone: ``verdict == "fits"`` is
        what surely fits.
        """
        over = self._row["over_bytes"]
        return None if over is None else over <= 0

    @property
    def certainty(self) -> Mapping[str, Any]:
        """How far off the account is, as measured: half width, of what, plans, largest, source."""
        return cast(Mapping[str, Any], self._row["error"])

    @property
    def range_bytes(self) -> tuple[int, int] | None:
        """Arguments and arena at both ends of that error; None: not known."""
        within = self._row["inside_range_bytes"]
        return None if within is None else (within[0], within[1])

    @property
    def largest_pdbs(self) -> Mapping[str, int | None]:
        """By strategy the largest pdbs that is not out of memory; None: it cannot be told."""
        return self.document["largest_pdbs"]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every strategy and pdbs that was projected."""
        return _table(self.document["rows"], _CELLS)

    @cached_property
    def components(self) -> pd.DataFrame:
        """What fills the memory in the cell that is shown; the rows sum to its total."""
        table = _table(self._row["components"])
        return table.rename(columns={"bytes": "size_bytes"})

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Pipeline stages of the cell that is shown, each at its own peak."""
        return _table(self._row["stages"])

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Phases of the run in the cell that is shown, with a verdict on device and host.

        Bytes are of one device, ``host_bytes`` of one host; ``host_verdict`` is missing where the
        host's memory was not given.
        """
        return _table(self._row["phases"], _PHASES)

    @cached_property
    def phase_rows(self) -> pd.DataFrame:
        """What fills the phases beside the step, and what a step keeps on a host."""
        rows = [
            {"phase": one["name"], **part}
            for one in self._row["phases"]
            for part in one["components"]
        ]
        return _table(rows).rename(columns={"bytes": "size_bytes"})

    @cached_property
    def levers(self) -> pd.DataFrame:
        """What would buy memory, where a cell of the shown strategy is near its limit or over."""
        found = next((row["levers"] for row in self.document["rows"] if row["levers"]), [])
        return _table(found or [], ("name", "saved_bytes", "verdict", "price"))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken where nothing was said, and what was assumed in the shown cell."""
        return (*self.document["said"], *self._row["notes"])

    @property
    def _row(self) -> MemoryRow:
        return words.shown(self.document)

    def to_json(self) -> str:
        """What ``moeprof memory --json`` prints."""
        return memory_document.to_json(self.document)

    def __str__(self) -> str:
        """What ``moeprof memory`` prints, at 80 columns."""
        from moeprof.reports.memory.terminal import drawn

        return drawn(self.document, WIDTH).plain

    def __repr__(self) -> str:
        """What it is, in one line."""
        inputs = self.document["inputs"]
        hardware = cast("Mapping[str, object]", inputs["hardware"])
        where = f"{inputs['devices']} × {hardware['name']}"
        return f"<moeprof memory of {where}: {words.verdict_line(self._row)}>"


@dataclass(frozen=True, eq=False, repr=False)
class PlanSearch:
    """Plans that fit, ranked; ``document`` is that of ``moeprof memory search --json``."""

    document: SearchDocument

    @cached_property
    def plans(self) -> pd.DataFrame:
        """The best plans in order: degrees, batch, bytes, times with their ranges.

        ``compiled_*`` are the compiler's, missing where it was not asked.
        """
        return _table([_plan_row(plan) for plan in self.document["plans"]], _PLAN_COLUMNS)

    @cached_property
    def rejected(self) -> pd.DataFrame:
        """Why the others are not among them, and how many of each."""
        return _table(self.document["rejected"], ("reason", "plans"))

    @cached_property
    def what_if(self) -> pd.DataFrame | None:
        """What optimisations would buy the best plan; None: it was not asked for."""
        effects = self.document["what_if"]
        return None if effects is None else _table(effects)

    @property
    def considered(self) -> int:
        """Plans that there are, with every strategy and rematerialisation."""
        return self.document["considered"]

    @property
    def fitting(self) -> int:
        """Plans that fit."""
        return self.document["fitting"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken where nothing was said, and what figures are worth."""
        return (*self.document["said"], *self.document["notes"])

    def to_json(self) -> str:
        """What ``moeprof memory search --json`` prints."""
        return search_document.to_json(self.document)

    def __str__(self) -> str:
        """What ``moeprof memory search`` prints, at 80 columns."""
        from moeprof.reports.search.terminal import drawn

        return drawn(self.document, WIDTH).plain

    def __repr__(self) -> str:
        """What it is, in one line."""
        return f"<moeprof search: {self.fitting:,} of {self.considered:,} plans fit>"


def _plan_row(plan: PlanInfo) -> dict[str, object]:
    values = cast("Mapping[str, Any]", plan)
    row = {name: values[name] for name in _PLANS} | plan["plan"]
    for name in _RANGES:
        row[f"{name}_low"], row[f"{name}_high"] = values[f"{name}_range"]
    check = plan.get("compiled")
    low, high = (check and check["peak_range_bytes"]) or (None, None)
    compiled = {"compiled_bytes_low": low, "compiled_bytes_high": high}
    return row | compiled | {"compiled_verdict": check["verdict"] if check else None}


def _table(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...] = ()) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(columns) or None)


# What is said in Python, in the forms of a request.


def _request(kind: type[_Asked], said: Mapping[str, Any]) -> _Asked:
    """A request of what was said by name.

    Raises:
        SelectionError: a name is unknown, or a value is of another kind.
    """
    own_first = sorted(fields(kind), key=lambda field: field.name in SHARED)
    kinds = {field.name: str(field.type) for field in own_first}
    values = {}
    for given, value in said.items():
        name = _FORMER.get(given, given)
        if name not in kinds:
            raise SelectionError(f"{given}: expected one of {', '.join(kinds)}, found {given!r}.")
        values[name] = _read(given, kinds[name], value)
    return kind(**{name: value for name, value in values.items() if value is not None})


def _read(name: str, kind: str, value: Any) -> Any:
    """One value as its field has it; None: not said."""
    if value is None:
        return None
    if kind.startswith("tuple"):
        return (value,) if isinstance(value, str) else tuple(map(str, value))
    if kind.startswith("str"):
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        return ",".join(map(str, value)) if is_list else str(value)
    if kind.startswith("int"):
        return _whole(name, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind.startswith("float") and is_number:
        return float(value)
    if kind.startswith("bool") and isinstance(value, bool):
        return value
    expected = "a number" if kind.startswith("float") else "True or False"
    raise SelectionError(f"{name}: expected {expected}, found {value!r}.")


def _whole(name: str, value: Any) -> int:
    least = _LEAST.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SelectionError(
            f"{name}: expected a whole number of at least {least}, found {value!r}."
        )
    return value
