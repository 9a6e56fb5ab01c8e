"""XSpace files on a few lines: planes, lines and events with named stats, times in ns."""

from __future__ import annotations

from dataclasses import dataclass, field

from builders.protobuf import Value, message

METADATA = "/host:metadata"
HOST = "/host:CPU"


@dataclass(frozen=True)
class Ref:
    """A stat that refers to a name instead of holding it."""

    name: str


@dataclass(frozen=True)
class Event:
    name: str
    start_ns: float
    duration_ns: float
    stats: dict[str, Value | Ref] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    name: str
    events: tuple[Event, ...]
    timestamp_ns: int = 0


@dataclass(frozen=True)
class Plane:
    name: str
    lines: tuple[Line, ...] = ()
    stats: dict[str, Value] = field(default_factory=dict)
    programs: dict[int, bytes] = field(default_factory=dict)
    name_stats: dict[str, dict[str, Value]] = field(default_factory=dict)
    program_names: dict[int, str] = field(default_factory=dict)


def event(name: str, start_ns: float, duration_ns: float, /, **stats: Value | Ref) -> Event:
    return Event(name, start_ns, duration_ns, stats)


def thunk(op: str, start_ns: float, duration_ns: float, /, **stats: Value | Ref) -> Event:
    """Device work of a CPU run; program 7, run 1, device 0 unless said otherwise.

    ``hlo_module=Ref(name)`` tells the program's name as well, as the profiler does.
    """
    known = {"hlo_op": Ref(op), "program_id": 7, "run_id": 1, "device_ordinal": 0}
    return Event(op, start_ns, duration_ns, {**known, **stats})


def line(name: str, *events: Event, timestamp_ns: int = 0) -> Line:
    return Line(name, events, timestamp_ns)


def host(*lines: Line) -> Plane:
    return Plane(HOST, lines)


def metadata(names: dict[int, str] | None = None, /, **programs: bytes) -> Plane:
    """The programs by id: ``metadata(p7=proto)``; all are ``jit_step`` but for those in `names`."""
    by_id = {int(key[1:]): proto for key, proto in programs.items()}
    stats: dict[str, Value] = {"jax_version": "0.10.2"}
    return Plane(METADATA, stats=stats, programs=by_id, program_names=names or {})


def xspace(*planes: Plane, hostnames: tuple[str, ...] = ("node0",)) -> bytes:
    return message(
        *((1, _plane(plane)) for plane in planes), *((4, hostname) for hostname in hostnames)
    )


class _Names:
    """Ids of names, in order of their first use, from 1."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)


def _plane(plane: Plane) -> bytes:
    names, stats = _Names(), _Names()
    lines = [_line(line, names, stats) for line in plane.lines]
    program_names = {
        names[f"{plane.program_names.get(key, 'jit_step')}({key})"]: key for key in plane.programs
    }
    own_stats = [_stat(stats[name], value, stats) for name, value in plane.stats.items()]
    events = [
        _entry(identity, _event_metadata(identity, name, plane, program_names, stats))
        for name, identity in names.ids.items()
    ]
    stat_names = [
        _entry(identity, message((1, identity), (2, name))) for name, identity in stats.ids.items()
    ]
    return message(
        (2, plane.name),
        *((3, encoded) for encoded in lines),
        *((4, entry) for entry in events),
        *((5, entry) for entry in stat_names),
        *((6, stat) for stat in own_stats),
    )


def _event_metadata(
    identity: int, name: str, plane: Plane, programs: dict[int, int], stats: _Names
) -> bytes:
    fields: list[tuple[int, Value]] = [(1, identity), (2, name)]
    if identity in programs:
        program = programs[identity]
        fields.append((5, _stat(stats["Hlo Proto"], plane.programs[program], stats)))
        fields.append((5, message((1, stats["program_id"]), (3, program))))
    shared = plane.name_stats.get(name, {})
    fields += [(5, _stat(stats[key], value, stats)) for key, value in shared.items()]
    return message(*fields)


def _line(line: Line, names: _Names, stats: _Names) -> bytes:
    return message(
        (2, line.name),
        (3, line.timestamp_ns),
        *((4, _event(item, names, stats)) for item in line.events),
    )


def _event(item: Event, names: _Names, stats: _Names) -> bytes:
    return message(
        (1, names[item.name]),
        (2, round(item.start_ns * 1000)),
        (3, round(item.duration_ns * 1000)),
        *((4, _stat(stats[name], value, stats)) for name, value in item.stats.items()),
    )


def _stat(identity: int, value: Value | Ref, stats: _Names) -> bytes:
    if isinstance(value, Ref):
        return message((1, identity), (7, stats[value.name]))
    number = {int: 4, float: 2, str: 5, bytes: 6}[type(value)]
    return message((1, identity), (number, value))


def _entry(key: int, value: bytes) -> bytes:
    return message((1, key), (2, value))
