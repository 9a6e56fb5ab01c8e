"""Reads HLO instructions, one or those of a whole program, where they are written as text.

As the compiler prints it in dumps, in buffer assignments and in out-of-memory messages::

    %fusion.3 = bf16[8,4]{1,0} fusion(%p.0, %p.1), kind=kLoop, calls=%fused, metadata={op_name="…"}
    fusion.3 = fusion(p.0, p.1), kind=kLoop
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from moeprof.hlo.instruction import NO_SHAPE, Frame, Frames, Instruction, parse_frames
from moeprof.hlo.shape import Shape, parse_shape
from moeprof.ingest.dump.attribute_text import AttributeText

_NAME = re.compile(r"\s*(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*[^*]*\*/")
_OPERAND = re.compile(r"%?([A-Za-z_][\w.\-]*)\s*(?:,|$)")
_CONFIG = re.compile(r"\bbackend_config=(?=[{\"])")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')
_PLACE = re.compile(r"\d{1,18}")
_MOST_CONFIG = 4096
_WITHOUT_OPERANDS = ("constant", "parameter")  # a value or a number stands in their place
_PLAIN_API = "API_VERSION_ORIGINAL"  # goes without saying
_FIELD = {
    "op_name": re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"'),
    "source_file": re.compile(r'\bsource_file="([^"]*)"'),
    "source_line": re.compile(r"\bsource_line=(\d+)"),
    "target": re.compile(r'\bcustom_call_target="([^"]*)"'),
    "trip_count": re.compile(r'"known_trip_count":\{"n":"(\d{1,18})"'),
}


def parse_instruction(text: str, computation: str = "main") -> Instruction | None:
    """Read an instruction, as far as its text tells; None where the text is none."""
    head = _NAME.match(text)
    if head is None:
        return None
    shape, rest = _shape(text[head.end() :])
    opcode, bracket, rest = rest.partition("(")
    opcode = opcode.strip()
    if not bracket or not re.fullmatch(r"[a-z][\w\-]*", opcode):
        return None
    inside = _balanced(rest)
    attributes = rest[len(inside) :]
    fields = metadata(attributes)
    behind, number = AttributeText(attributes), inside.strip()
    return Instruction(
        head[1],
        opcode,
        shape,
        () if opcode in _WITHOUT_OPERANDS else _operands(inside),
        behind.called,
        behind.attributes(opcode, inside, shape),
        computation,
        is_root=text.lstrip().startswith("ROOT "),
        op_name=fields["op_name"],
        frames=_frames(fields["source_file"], fields["source_line"]),
        target=fields["target"],
        config=_config(attributes),
        groups=behind.groups,
        parameter=int(number) if opcode == "parameter" and _PLACE.fullmatch(number) else -1,
        trip_count=int(fields["trip_count"] or -1),
        channel_id=behind.number("channel_id"),
        uses_global_ids=behind.word("use_global_device_ids") == "true",
        pairs=behind.pairs,
        api_version=behind.word("api_version") or (_PLAIN_API if fields["target"] else ""),
    )


def metadata(text: str) -> dict[str, str]:
    """``op_name``, ``source_file``, ``source_line`` and others of a text; empty where absent."""
    found = {name: pattern.search(text) for name, pattern in _FIELD.items()}
    return {name: _unescaped(match[1]) if match else "" for name, match in found.items()}


def _frames(file: str, line: str) -> Frames:
    return parse_frames(f"{file}:{line or 0}:") if file else ()


def _config(text: str) -> str:
    """The backend's configuration, as JSON or as what stands between its quotes."""
    found = _CONFIG.search(text)
    if found is None:
        return ""
    begin, depth = found.end(), 0
    for token in _TOKEN.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            config = text[begin : token.end()]
            config = _unescaped(config[1:-1]) if config.startswith('"') else config
            return config if len(config) <= _MOST_CONFIG else config[:_MOST_CONFIG] + "…"
    return ""


def _unescaped(text: str) -> str:
    return re.sub(r"\\(['\"\\])", r"\1", text)


def _shape(text: str) -> tuple[Shape, str]:
    """The shape at the beginning, where there is one, and what follows it."""
    if text.startswith("("):
        inside = _balanced(text[1:])
        return parse_shape(f"({inside})"), text[len(inside) + 2 :].lstrip()
    first, _, rest = text.partition(" ")
    has_shape = "[" in first.partition("(")[0]
    return (parse_shape(first), rest.lstrip()) if has_shape else (NO_SHAPE, text)


def _balanced(text: str) -> str:
    """Up to the bracket that closes the one before the text; all of it where none does."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place]
    return text


def _operands(inside: str) -> tuple[str, ...]:
    if "%" in inside:
        return tuple(re.findall(r"%([\w.\-]+)", inside))
    return tuple(_OPERAND.findall(_LAYOUT.sub("", inside)))


# Which instructions does a program consist of that was written as HLO text?
#
# ``…after_optimizations.txt``, which the compiler writes unless it is told otherwise: tables of
# source locations, then computations. What an instruction says is read by `instruction_text`.

MARK = "HloModule "
_MODULE = re.compile(r"HloModule ([\w.\-]+)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d{1,18}) (.*)")
_NUMBER = re.compile(r"(\w+)=(\d{1,18})")
_FRAME = re.compile(r"\bstack_frame_id=(\d{1,18})")
_MOST_FRAMES = 200


@dataclass
class _Sources:
    """The tables of source locations, by number."""

    tables: dict[str, dict[int, str]] = field(default_factory=dict)

    def frames(self, number: int) -> Frames:
        """The lines that lead to a frame, innermost first; none where unknown."""
        frames = self.tables.get("StackFrames", {})
        # some versions print a parent as its number plus one, so that the outermost is its own
        is_shifted = dict(_NUMBER.findall(frames.get(1, ""))).get("parent_frame_id") == "1"
        lines: list[Frame | None] = []
        while number in frames and len(lines) < _MOST_FRAMES:
            told = dict(_NUMBER.findall(frames[number]))
            lines.append(self._line(int(told.get("file_location_id", 0))))
            parent = int(told.get("parent_frame_id", 0)) - is_shifted
            if parent == number:
                break
            number = parent
        return tuple(line for line in lines if line is not None)

    def _line(self, location: int) -> Frame | None:
        told = dict(_NUMBER.findall(self.tables.get("FileLocations", {}).get(location, "")))
        names = (("FileNames", "file_name_id"), ("FunctionNames", "function_name_id"))
        file, function = (
            self.tables.get(table, {}).get(int(told.get(key, 0)), "").strip('"')
            for table, key in names
        )
        return Frame(file, int(told.get("line", 0)), function) if file else None


def module_name(text: str) -> str:
    """The name of the module; empty where the text is none."""
    found = _MODULE.match(text)
    return found[1] if found else ""


def parse_module_text(text: str) -> Iterator[Instruction]:
    """Instructions of all computations, in the order of the text."""
    sources, table, computation = _Sources(), "", ""
    for line in text.splitlines():
        if line in _TABLES:
            table = line
        elif table and (entry := _ENTRY.fullmatch(line)):
            sources.tables.setdefault(table, {})[int(entry[1])] = entry[2]
        elif head := _COMPUTATION.match(line):
            table, computation = "", head[1]
        elif computation and line.startswith("  "):
            found = parse_instruction(line, computation)
            if found is not None:
                frame = _FRAME.search(line)
                frames = sources.frames(int(frame[1])) if frame else ()
                yield found if found.frames else found._replace(frames=frames)
