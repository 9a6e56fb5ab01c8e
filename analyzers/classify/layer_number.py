"""Question: which layer does an op's name say it is of, where it counts layers?

``…/layers_7/moe/…``, ``…/layers[7]/…``, ``…/h/7/mlp/…``, ``…/DecoderLayer_7/…``. Layers that a loop
runs one after the other have no number: the loop's ops are those of all of them.
"""

from __future__ import annotations

import re
from itertools import pairwise

from moeprof.analyzers.classify.names import scopes

# words as `(?:[a-z]+_)*` end in one way alone: no name takes longer than its length
_WORD = r"(?:[a-z]+_)*[a-z]*(?:layers?|blocks?)|h|\w*(?:Layer|Block)"
_NUMBERED = re.compile(rf"({_WORD})[_.\[]?(\d+)\]?")
_ALONE = re.compile(_WORD)
_PART_OF_LAYER = re.compile(r"(?i)moe|mixture|expert|mlp|ffn|attention|norm")


def layer_number(op_name: str) -> int | None:
    """The number of the outermost counted layer in a scope path; None where none is told.

    ``MoeBlock_0`` is Flax's first module of a kind inside a layer, not layer 0.
    """
    for path in scopes(op_name):
        for element, following in pairwise([*path, ""]):
            found = _NUMBERED.fullmatch(element)
            if found and not _is_part_of_layer(found[1]):
                return int(found[2])
            if following.isdecimal() and _ALONE.fullmatch(element):
                return int(following)
    return None


def _is_part_of_layer(word: str) -> bool:
    """Whether a class name (with capitals) is that of a module inside a layer."""
    return word != word.lower() and bool(_PART_OF_LAYER.search(word))
