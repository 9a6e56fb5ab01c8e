"""Question: which model does the user mean by a name or a path?

A preset's name, a Hugging Face ``config.json``, a MaxText YAML file. A family's keys are read in a
module each, on top of `document`, which is the same for all.
"""

from __future__ import annotations

from pathlib import Path

from moeprof.errors import SelectionError, SpecError
from moeprof.specs.presets import load_preset, preset_facts, preset_key, preset_names
from moeprof.specs.sources.document import LoadedModel


def load_model(text: str, attention: str | None = None) -> LoadedModel:
    """A preset by key or alias, or a file: ``.json`` or a folder with one, ``.yml``, ``.yaml``.

    ``attention`` (mla, gqa) picks one where a preset offers several. A preset's name wins over a
    file of the same name; ``./NAME`` is the file.

    Raises:
        SelectionError: it is neither a name that is known nor a path.
        SpecError: the file cannot be read, or describes no model.
    """
    key = preset_key(text)
    if key is not None:
        facts = preset_facts(key)
        notes = (facts.note,) if facts.note else ()
        return LoadedModel(load_preset(key, attention), key, notes)
    path = Path(text)
    if attention is not None:
        raise SpecError(f"attention {attention}: only presets offer a choice, {text} is none.")
    if path.suffix.lower() in (".yml", ".yaml"):
        # PyYAML takes longer to import than a preset to project.
        from moeprof.specs.sources.maxtext_yaml import read_maxtext_yaml

        return read_maxtext_yaml(path)
    if path.suffix.lower() == ".json" or _exists(path):
        from moeprof.specs.sources.hf_config import read_hf_config  # nor does a preset need it

        return read_hf_config(path)
    raise SelectionError(
        f"model: expected a preset, a config.json or a MaxText .yml, found {text!r}. Presets: "
        f"{', '.join(preset_names())}."
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
