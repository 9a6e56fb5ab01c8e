"""Ragged products of captures of two H100: dense in one, absent in the other."""

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.classify.ragged import Expansion, dense_fallback

STEP = 19239


def test_all_eight_ragged_products_of_a_layer_are_dense(opened):
    program = programs_of(opened("h100x2_moe_ragged.xplane.pb"))[STEP]
    found = dense_fallback(program)
    # 2 forward, 2 recomputed, 4 backward; 16 experts a device, 4096 × 4 rows of 2 devices
    assert len(found.products) == 8
    assert {program.ops[name].primitive for name in found.products} == {"ragged_dot_general"}
    assert set(found.products.values()) == {
        Expansion(16, 32768, 1024),
        Expansion(16, 32768, 512),
    }
    fusions = [name for name in found.arrays if program.ops[name].opcode == "fusion"]
    assert len(fusions) == 9
    assert found.arrays["wrapped_transpose.2"] == Expansion(16, 32768, 1024)


def test_a_program_of_dense_einsums_has_none(opened):
    programs = programs_of(opened("maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz"))
    assert not any(dense_fallback(program).products for program in programs.values())
