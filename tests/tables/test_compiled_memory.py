"""What a program says of its memory: zeros everywhere are no answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moeprof.tables.compiled_memory import NOT_REPORTED, compiled_memory


def stats(code: int = 0, **parts: int) -> SimpleNamespace:
    sizes = dict.fromkeys(("argument", "output", "alias", "temp"), 0) | {"generated_code": code}
    return SimpleNamespace(**{f"{n}_size_in_bytes": v for n, v in (sizes | parts).items()})


@pytest.mark.parametrize(
    "told", [stats(code=2856), stats(), None, SimpleNamespace(), SimpleNamespace(temp=1)]
)
def test_zeros_everywhere_or_no_attribute_is_not_reported(told):
    found = compiled_memory(told)
    assert not found.is_reported
    assert found.total_bytes is None
    record = found.as_record()
    assert record["temp_bytes"] is None
    assert record["note"] == NOT_REPORTED == "not reported by this backend"


def test_a_total_counts_what_is_reused_once():
    found = compiled_memory(stats(code=5, argument=100, output=90, alias=80, temp=40))
    assert found.total_bytes == 100 + 90 - 80 + 40
    assert found.generated_code_bytes == 5


def test_a_record_reads_back_as_it_was_written():
    found = compiled_memory(stats(argument=16, output=16, host_temp=3))
    assert found.more == (("host_temp_bytes", 3),)
    assert compiled_memory(found.as_record()) == found
    assert compiled_memory(compiled_memory(stats(code=9)).as_record()) == compiled_memory(None)


def test_the_statistics_of_jax_are_read():
    jax = pytest.importorskip("jax")
    compiled = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4,), "float32")).compile()
    found = compiled_memory(compiled.memory_analysis())
    assert (found.argument_bytes, found.output_bytes) == (16, 16)  # four floats each
