"""Question: which model, and which run options, does a command line of MaxText mean?

``FILE key=value …`` as MaxText 0.2.5 reads it (maxtext/configs/pyconfig.py): a file and those that
it inherits from by ``base_config``, above them the file of ``model_name``, above that the words of
the command line, above all ``M_KEY`` of the environment. A word may not change what the model's
file says unless ``override_model_config`` is true. Files that are not beside the given one are of
the installed MaxText, which is looked up and never imported. Without it MaxText's defaults are in
``maxtext_defaults.csv``, and its model is moeprof's preset of that name.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeprof.errors import SelectionError, SpecError
from moeprof.specs.presets import preset_key
from moeprof.specs.sources.document import (
    COMMAND_LINE,
    MAXTEXT,
    VARIABLE,
    Document,
    LoadedModel,
    is_said,
    known_keys,
)
from moeprof.specs.sources.maxtext_yaml import (
    default_values,
    parsed,
    read_document,
    read_mapping,
    referred,
)

BASE, MODEL, OVERRIDE = "base_config", "model_name", "override_model_config"
_ENVIRONMENT = "M_"
_MOST_FILES = 20
_WHOLE_BASE = "logical_axis_rules"
"""A key that every base.yml of MaxText has: a file with it has all keys that a projection reads."""
_SOURCE = "src/maxtext/configs/"
_SHORTEST_FLASH = 128
"""Tokens from which on MaxText's ``attention=autoselected`` is a flash kernel."""
_SWITCHES = {"true": True, "t": True, "yes": True, "1": True, "on": True}
_SWITCHES |= {"false": False, "f": False, "no": False, "0": False, "off": False}


@dataclass(frozen=True)
class Installed:
    """The files of a MaxText: its folder of configurations, its list of keys, how it is called."""

    configs: Path
    types: Path
    name: str

    def called(self, file: Path) -> str:
        """A file of its configurations by its place among them."""
        return f"{self.name}'s {file.relative_to(self.configs)}"


@dataclass(frozen=True)
class Configuration:
    """What a command line of MaxText comes to.

    ``sources`` says of each key which file, or what else, its value is from. ``is_preset``: the
    model's widths are not among the values, its name is one of moeprof's. ``notes`` are sentences
    on what was not found.
    """

    path: str
    values: Mapping[str, object]
    sources: Mapping[str, str]
    is_preset: bool
    notes: tuple[str, ...]


def read_maxtext_command(
    words: Sequence[str],
    environ: Mapping[str, str] | None = None,
    installed: Installed | None = None,
) -> LoadedModel:
    """The model and the options of ``FILE key=value …``; a value's source stands in ``sources``.

    Args:
        words: a file of MaxText's, then what MaxText is given on its command line.
        environ: variables; those of this process where left out.
        installed: a MaxText; the one of this Python where left out.

    Raises:
        SelectionError: a word is none, MaxText has no such key, or the value is of another kind.
        SpecError: a file cannot be read, or names no model that is known.
    """
    found = configuration(words, environ, installed)
    values = {key: value for key, value in found.values.items() if key != OVERRIDE}  # merged
    document = Document(found.path, values, found.sources)
    loaded = read_document(document, is_preset=found.is_preset)
    options = {key: value for key, value in loaded.options.items() if value is not None}
    if "remat_policy" in loaded.options:
        options.setdefault("remat_policy", "none")  # no policy is one too
    sources = {key: found.sources[key] for key in options}
    if options.get("attention") == "autoselected":
        is_short = (document.count("max_target_length") or _SHORTEST_FLASH) < _SHORTEST_FLASH
        options["attention"] = "dot_product" if is_short else "flash"
    notes = (*found.notes, *loaded.notes)
    return replace(loaded, notes=notes, options=options, sources=sources)


def installed_maxtext() -> Installed | None:
    """The MaxText of this Python; it is not imported."""
    spec = importlib.util.find_spec("maxtext")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    try:
        name = f"MaxText {importlib.metadata.version('maxtext')}"
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        name = "MaxText"
    configs = Path(os.environ.get("MAXTEXT_CONFIGS_DIR", root / "configs"))
    return Installed(configs, root / "configs" / "types.py", name)


def configuration(
    words: Sequence[str],
    environ: Mapping[str, str] | None = None,
    installed: Installed | None = None,
) -> Configuration:
    """All keys that the words, their files and the environment set, as MaxText merges them.

    Raises:
        SelectionError, SpecError: as of `read_maxtext_command`.
    """
    environ = os.environ if environ is None else environ
    installed = installed_maxtext() if installed is None else installed
    path = _resolved(words[0], installed)
    chain, notes = _chain(path, installed)
    said = _said(words[1:])
    merged = _Merged()
    for layer, values in chain:
        merged.add(layer, values)
    asked = {**{key: value for _, values in chain[1:] for key, value in values.items()}, **said}
    said = _of_kinds(said, merged)
    name = said.get(MODEL, merged.values.get(MODEL))
    model_path, own = _model_file(name, path, installed)
    may_override = bool(said.get(OVERRIDE, merged.values.get(OVERRIDE)))
    if may_override:
        own = {key: value for key, value in own.items() if key not in said}
    else:
        _refuse_changes(own, said, model_path)
    notes += _check_keys(asked, frozenset((*chain[0][1], *own)), installed)
    if model_path is not None:
        merged.add(_called(model_path, installed), own)
    merged.add(COMMAND_LINE, said)
    merged.refer()
    is_preset = model_path is None and preset_key(str(name)) is not None
    if model_path is None and name not in (None, "default"):
        widths = known_keys(MAXTEXT, "read") & asked.keys()
        notes.append(_without_model(str(name), widths, said, is_preset, installed))
    for key, value in list(merged.values.items()):
        _take_variable(key, value, environ, merged, frozenset(said), () if may_override else own)
    return Configuration(str(path), merged.values, merged.sources, is_preset, tuple(notes))


class _Merged:
    """Keys of several layers, later ones above; of each the layer that it is from."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}

    def add(self, layer: str, values: Mapping[str, object]) -> None:
        """Put a layer on top. MaxText takes ``none`` for no value."""
        for key, value in values.items():
            is_none = isinstance(value, str) and value.lower() == "none"
            self.values[key] = None if is_none else value
            self.sources[key] = layer

    def refer(self) -> None:
        """Put the value of its key for each ``${key}``; MaxText looks for a word's among words."""
        words = {key: self.values[key] for key, source in self.sources.items() if is_said(source)}
        for key, source in self.sources.items():
            try:
                self.values[key] = referred(words if key in words else self.values, key)
            except SpecError as error:
                if is_said(source):
                    raise SelectionError(f"memory --maxtext: {key}: {error}") from None
                raise SpecError(f"{source}: key {key}: {error}") from None


# Files.


def _is_file(path: Path) -> bool:
    """Whether there is a file; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _called(path: Path, installed: Installed | None) -> str:
    is_own = installed is not None and path.is_relative_to(installed.configs)
    return installed.called(path) if installed is not None and is_own else str(path)


def _resolved(text: str, installed: Installed | None) -> Path:
    """The file itself, or the one of MaxText's own configurations that it names."""
    path = Path(text)
    if not _is_file(path) and installed is not None:
        own = installed.configs / text.removeprefix(_SOURCE)
        if not path.is_absolute() and _is_file(own):
            return own
    return path


def _chain(path: Path, installed: Installed | None) -> tuple[list[tuple[str, Any]], list[str]]:
    """Layers from the lowest to the file itself, and what was not found of them."""
    layers: list[tuple[str, Any]] = []
    notes: list[str] = []
    while True:
        values = read_mapping(path)
        layers.insert(0, (_called(path, installed), values))
        parent = values.get(BASE)
        if parent is None:
            break
        if len(layers) == _MOST_FILES:
            raise SpecError(f"{path}: key {BASE}: expected an end, found {_MOST_FILES} files.")
        places = [path.parent / str(parent)]
        places += [installed.configs / str(parent)] if installed else []
        found = next((place for place in places if _is_file(place)), None)
        if found is None:
            notes.append(f"{BASE} {parent} was not found, as MaxText is not installed here")
            break
        path = found
    if _WHOLE_BASE not in layers[0][1]:
        layers.insert(0, ("MaxText 0.2.5, by moeprof's table", default_values()))
    return layers, notes


def _model_file(
    name: object, path: Path, installed: Installed | None
) -> tuple[Path | None, Mapping[str, object]]:
    """The file of a model by its name, beside the given one or MaxText's, and its keys."""
    if name in (None, "default"):
        return None, {}
    file = f"{str(name).replace('-Instruct', '')}.yml"
    folders = [path.parent, path.parent.parent]
    folders += [installed.configs] if installed else []
    for folder in folders:
        if _is_file(folder / "models" / file):
            return folder / "models" / file, read_mapping(folder / "models" / file)
    return None, {}


# Words.


def _said(words: Sequence[str]) -> dict[str, object]:
    said: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SelectionError(
                f"memory --maxtext: expected key=value, found {word!r}. Options of moeprof itself "
                "begin with --."
            )
        try:
            said[key] = parsed(text)
        except SpecError as error:
            raise SelectionError(f"memory --maxtext: {key}: {error}") from None
    return said


def _refuse_changes(
    own: Mapping[str, object], said: Mapping[str, object], path: Path | None
) -> None:
    """Refuse words that change what the model's file says, as MaxText does."""
    both = [key for key, value in own.items() if key in said and said[key] != value]
    if both:
        pairs = ", ".join(f"{key} {said[key]} (there {own[key]})" for key in both)
        raise SelectionError(
            f"memory --maxtext: expected what {path} says of the model, found {pairs}. MaxText "
            f"refuses that too; {OVERRIDE}=True lets words win."
        )


def _without_model(
    name: str,
    widths: frozenset[str],
    said: Mapping[str, object],
    is_preset: bool,
    installed: Installed | None,
) -> str:
    """What is taken for a model whose file was not found; ``widths`` are keys of it that are given.

    Raises:
        SelectionError: nothing is known of it, or words would change what is known.
    """
    here = f"{installed.name} has none" if installed else "MaxText is not installed here"
    why = f"{MODEL} {name}: its file models/{name}.yml was not found ({here})"
    changed = sorted(widths & said.keys())
    if is_preset and changed:
        raise SelectionError(
            f"memory --maxtext: {why}, so {', '.join(changed)} cannot change it. Put the file "
            "beside the given one, in models/, or install MaxText."
        )
    if not is_preset and not widths:
        raise SelectionError(
            f"memory --maxtext: {why}, and it is no model of moeprof's. Put the file beside the "
            "given one, in models/, or install MaxText."
        )
    return why if is_preset else f"{why}: the widths given are taken"


def _check_keys(
    asked: Mapping[str, object], lower: frozenset[str], installed: Installed | None
) -> list[str]:
    """Refuse keys that MaxText has none of.

    ``lower`` are those of the lowest file, which is trusted, and of the model's. Where MaxText's
    own list is not at hand those that look like a known one are refused, others are noted.
    """
    known = {*known_keys(MAXTEXT), *default_values(), *lower, MODEL, OVERRIDE, BASE}
    unknown = [key for key in asked if key.split(".")[0] not in known]
    if unknown and installed is not None:
        known |= set(_fields(installed.types))
        unknown = [key for key in unknown if key.split(".")[0] not in known]
    near = difflib.get_close_matches(unknown[0], known, 1, 0.8) if unknown else []
    if unknown and (near or installed is not None):
        raise SelectionError(
            f"memory --maxtext: expected keys of MaxText, found {', '.join(unknown)}."
            + (f" Is {near[0]} meant?" if near else "")
        )
    names = ", ".join(unknown[:12])
    return [f"not checked, as MaxText's list of keys is not here: {names}"] if unknown else []


def _fields(types: Path) -> Iterator[str]:
    """Keys that MaxText takes, by its own classes; read as text, as importing it takes seconds."""
    if types.is_file():
        text = types.read_text("utf-8")
        yield from re.findall(r"^  ([a-z]\w*) ?:", text, re.MULTILINE)


def _of_kinds(said: Mapping[str, object], below: _Merged) -> dict[str, object]:
    """The words' values; refused where the files have a number or a switch, and they are none."""
    found = dict(said)
    for key, value in said.items():
        default = below.values.get(key)
        if isinstance(default, bool) and "${" not in str(value):
            found[key] = _SWITCHES.get(str(value).lower())
            is_right, kind = found[key] is not None, "True or False"
        else:
            is_right = not _is_number(default) or _is_number(value) or "${" in str(value)
            kind = "a number"
        if not is_right:
            raise SelectionError(
                f"memory --maxtext: {key}: expected {kind}, as {default} of {below.sources[key]}, "
                f"found {value!r}."
            )
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _take_variable(
    key: str,
    value: object,
    environ: Mapping[str, str],
    merged: _Merged,
    said: frozenset[str],
    own: Mapping[str, object] | tuple[()],
) -> None:
    """Put ``M_KEY`` of the environment on top, read as the kind of value that is below."""
    name = f"{_ENVIRONMENT}{key.upper()}"
    if name not in environ:
        return
    for place in [COMMAND_LINE] * (key in said) + [merged.sources[key]] * (key in own):
        raise SelectionError(
            f"memory --maxtext: {key} is set by {place} and by the variable {name}, which MaxText "
            "refuses. Unset one of them."
        )
    text = environ[name]
    try:
        if isinstance(value, bool):
            new: object = _SWITCHES[text.lower()]
        else:
            new = type(value)(text) if isinstance(value, str | int | float) else parsed(text)
    except (ValueError, KeyError):
        raise SelectionError(
            f"memory --maxtext: variable {name}: expected a value like {value!r}, found {text!r}."
        ) from None
    merged.add(f"{VARIABLE}{name}", {key: new})
