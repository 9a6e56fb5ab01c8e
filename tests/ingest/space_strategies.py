"""Random XSpaces: fields in any order, twice or missing, unknown ones, extreme numbers and ids.

Built by a seeded generator, of which hypothesis chooses the seed: drawing each field from
hypothesis would take a hundred times longer than reading the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

from builders.protobuf import Value, field, varint
from hypothesis import strategies as st

# Few ids, so that names, references and events meet; the last ones are extremes.
IDS = (1, 2, 3, 1, 2, 3, 0, 4, -1, 70_000, 2**63 - 1, -(2**63))
ASKED = ("op", "run_id", "", "5")
UNICODE = ("", "k", "op", "run_id", "dot.1", "é€😀", "a" * 130)
BROKEN = (*UNICODE, b"k\x9f", b"k\x9e", b"k\xff", b"\xed\xa0\x80")
EXTREMES = (2**63 - 1, -(2**63), 2**53 + 1, -1, 0)
DOUBLES = (0.5, -0.0, float("nan"), float("inf"), 5e-324)


def spaces(texts: Sequence[str | bytes], *, noisy_maps: bool) -> st.SearchStrategy[bytes]:
    """Valid XSpaces; `texts` are their names and strings.

    Unless `noisy_maps`, map entries hold known fields alone: protobuf's Python parser passes over
    whole entries with unknown ones, its C++ parser does not.
    """
    return _seeds(lambda rng: _Generator(rng, texts, noisy_maps).space())


def damaged() -> st.SearchStrategy[bytes]:
    """XSpaces with bytes changed, taken out or put in, then perhaps cut."""
    return _seeds(lambda rng: _damage(rng, _Generator(rng, BROKEN, True).space()))


def _seeds(make: Callable[[Random], bytes]) -> st.SearchStrategy[bytes]:
    return st.integers(0, 2**64 - 1).map(lambda seed: make(Random(seed)))


def _damage(rng: Random, whole: bytes) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(0, 4)):
        at = rng.randint(0, len(data))
        data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.5 else data)


class _Generator:
    """Messages of an XSpace, each a shuffled list of encoded fields."""

    def __init__(self, rng: Random, texts: Sequence[str | bytes], noisy_maps: bool) -> None:
        self.rng = rng
        self.texts = texts
        self.noisy_maps = noisy_maps
        self.noise_share = 0.2

    def space(self) -> bytes:
        planes = [field(1, self.plane()) for _ in range(self.rng.randint(0, 3))]
        notes = [field(self.rng.choice((2, 3, 4)), self.text()) for _ in range(self.few(2))]
        return self.shuffled([*planes, *notes])

    def plane(self) -> bytes:
        parts = [field(2, self.text())]
        parts += [field(3, self.line()) for _ in range(self.few(3))]
        parts += [field(4, self.entry(self.text(), self.few(2))) for _ in range(self.few(4))]
        parts += [field(5, self.entry(self.rng.choice(ASKED), 0)) for _ in range(self.few(6))]
        parts += [field(6, self.stat()) for _ in range(self.few(2))]
        return self.shuffled(parts)

    def line(self) -> bytes:
        head = [self.id(1), field(2, self.text()), self.number(3), self.number(9)]
        events = [field(4, self.event()) for _ in range(self.few(5))]
        return self.shuffled([*head, *events])

    def event(self) -> bytes:
        stats = [field(4, self.stat()) for _ in range(self.few(4))]
        return self.shuffled([self.id(1), self.number(2), self.number(3), *stats])

    def stat(self) -> bytes:
        ids = [self.id(1) for _ in range(self.rng.choice((0, 1, 1, 1, 1, 2)))]
        return self.shuffled([*ids, *(self.stat_value() for _ in range(self.few(2)))])

    def stat_value(self) -> bytes:
        number = self.rng.randint(2, 7)
        values: dict[int, Callable[[], Value]] = {
            2: lambda: self.rng.choice(DOUBLES),
            5: self.text,
            6: lambda: self.rng.choice(BROKEN),
            7: lambda: self.rng.choice(IDS),
        }
        return field(number, values[number]()) if number in values else self.number(number)

    def entry(self, name: str | bytes, stats: int) -> bytes:
        """A map entry whose value is metadata of this name."""
        self.noise_share = 0.2 if self.noisy_maps else 0
        metadata = [field(2, name), *(field(5, self.stat()) for _ in range(stats))]
        keys = [self.id(1)] if self.rng.random() < 0.9 else []
        values = [field(2, self.shuffled(metadata))] if self.rng.random() < 0.9 else []
        whole = self.shuffled([*keys, *values])
        self.noise_share = 0.2
        return whole

    def shuffled(self, parts: list[bytes]) -> bytes:
        """The fields, sometimes in another order, sometimes with one that means nothing."""
        if self.rng.random() < self.noise_share:
            parts = [*parts, self.noise()]
        if self.rng.random() < 0.3:
            self.rng.shuffle(parts)
        return b"".join(parts)

    def noise(self) -> bytes:
        """An unknown field, or a known number with content of another kind than the format's."""
        fixed32 = struct.pack("<I", self.rng.getrandbits(32))
        return self.rng.choice(
            (
                field(13, self.rng.randbytes(self.rng.randint(0, 9))),
                field(2**29 - 1, self.rng.random()),
                self.number(14),
                varint(self.rng.randint(1, 9) << 3 | 5) + fixed32,
            )
        )

    def few(self, most: int) -> int:
        return self.rng.randint(0, most)

    def id(self, number: int) -> bytes:
        return field(number, self.rng.choice(IDS))

    def number(self, number: int) -> bytes:
        choices = (self.rng.randint(-3, 3000), self.rng.getrandbits(64), self.rng.choice(EXTREMES))
        return field(number, self.rng.choice(choices))

    def text(self) -> str | bytes:
        return self.rng.choice(self.texts)
