"""Ragged products that became dense ones: rows [6, 4] of groups 3, worked out by hand."""

import gc
import weakref

from builders.ops import program, row

from moeprof.analyzers.classify.ragged import Expansion, dense_fallback

DENSE = Expansion(groups=3, rows=6, width=4)


def masked(*, name: str = "", upper: bool = True) -> list[dict[str, object]]:
    """A fusion that repeats rows per group and masks them by the first and last row of each."""
    inside = {"computation": "fused"}
    bounds = [
        row("i", "iota", "s32[3,6,4]", details="dimensions=1", **inside),
        row("low", "broadcast", "s32[3,6,4]", "starts", details="dimensions=0", **inside),
        row("above", "compare", "pred[3,6,4]", "low i", details="direction=LE", **inside),
    ]
    if upper:
        bounds += [
            row("high", "broadcast", "s32[3,6,4]", "ends", details="dimensions=0", **inside),
            row("below", "compare", "pred[3,6,4]", "i high", details="direction=LT", **inside),
            row("both", "and", "pred[3,6,4]", "above below", **inside),
        ]
    return [
        row("rows", "parameter", "bf16[6,4]", parameter=0, **inside),
        row("starts", "parameter", "s32[3]", parameter=1, **inside),
        row("ends", "parameter", "s32[3]", parameter=2, **inside),
        row("zero", "constant", "bf16[]", **inside),
        row("zeros", "broadcast", "bf16[3,6,4]", "zero", **inside),
        row("again", "broadcast", "bf16[3,6,4]", "rows", details="dimensions=1,2", **inside),
        *bounds,
        row(
            "masked",
            "select",
            "bf16[3,6,4]",
            f"{'both' if upper else 'above'} again zeros",
            op_name=name,
            is_root=True,
            **inside,
        ),
    ]


FUSED = row("dense", "fusion", "bf16[3,6,4]", "x s e", called="fused")
INPUTS = [
    row("x", "parameter", "bf16[6,4]", parameter=0),
    row("s", "parameter", "s32[3]", parameter=1),
    row("e", "parameter", "s32[3]", parameter=2),
    row("w", "parameter", "bf16[12,5]", parameter=3),
]


def test_masked_rows_are_found_without_a_name_and_followed_to_the_product():
    found = dense_fallback(
        program(
            *masked(),
            *INPUTS,
            FUSED,
            row("turned", "transpose", "bf16[6,3,4]", "dense"),
            row("flat", "bitcast", "bf16[6,12]", "turned"),
            row("out", "custom-call", "bf16[6,5]", "flat w", custom_call_target="__cublas$gemm"),
        )
    )
    assert found.arrays == {"dense": DENSE, "turned": DENSE, "flat": DENSE}
    assert found.products == {"out": DENSE}


def test_a_fusion_that_multiplies_what_it_repeats_holds_no_dense_array():
    found = dense_fallback(
        program(
            *(part | {"is_root": False} for part in masked()),
            row("flat", "bitcast", "bf16[6,12]", "masked", computation="fused"),
            row("wide", "parameter", "bf16[12,5]", parameter=3, computation="fused"),
            row("sum", "dot", "bf16[6,5]", "flat wide", computation="fused", is_root=True),
            *INPUTS,
            row("out", "fusion", "bf16[6,5]", "x s e w", called="fused"),
        )
    )
    assert found.arrays == {}
    assert found.products == {"out": DENSE}


def test_one_bound_alone_is_no_group_unless_the_name_says_ragged_dot():
    assert dense_fallback(program(*masked(upper=False), *INPUTS, FUSED)).arrays == {}
    named = masked(upper=False, name="jit(f)/moe/ragged_dot_general")
    assert dense_fallback(program(*named, *INPUTS, FUSED)).arrays == {"dense": DENSE}


def test_the_mask_may_come_from_outside_of_the_fusion():
    outside = [
        part | {"computation": "main"}
        for part in masked()
        if part["op"] in ("i", "low", "above", "high", "below", "both")
    ]
    renamed = [
        part | {"operands": str(part["operands"]).replace("starts", "s").replace("ends", "e")}
        for part in outside
    ]
    inside = {"computation": "fused"}
    found = dense_fallback(
        program(
            *INPUTS,
            *renamed,
            row("rows", "parameter", "bf16[6,4]", parameter=0, **inside),
            row("mask", "parameter", "pred[3,6,4]", parameter=1, **inside),
            row("zeros", "broadcast", "bf16[3,6,4]", **inside),
            row("again", "broadcast", "bf16[3,6,4]", "rows", details="dimensions=1,2", **inside),
            row("masked", "select", "bf16[3,6,4]", "mask again zeros", is_root=True, **inside),
            row("dense", "fusion", "bf16[3,6,4]", "x both", called="fused"),
        )
    )
    assert found.arrays == {"dense": DENSE}


def test_the_gradient_of_the_weights_is_no_dense_array():
    found = dense_fallback(
        program(
            *INPUTS,
            row(
                "dw",
                "custom-call",
                "bf16[3,4,5]",
                "x x",
                custom_call_target="__cublas$gemm",
                op_name="jit(f)/transpose(jvp(moe))/ragged_dot_general",
            ),
        )
    )
    assert found == dense_fallback(program(*INPUTS))
    assert found.arrays == found.products == {}


def test_the_answer_is_kept_no_longer_than_the_program():
    made = program(*masked(), *INPUTS, FUSED)
    assert dense_fallback(made) is dense_fallback(made)
    watched = weakref.ref(made)
    del made
    gc.collect()
    assert watched() is None


def test_an_array_of_at_most_so_many_rows_counts_as_one_of_so_many():
    """[3, <=6, 4]: memory is taken for the bound."""
    found = dense_fallback(
        program(*masked(), *INPUTS, FUSED, row("kept", "copy", "bf16[3,<=6,4]", "dense"))
    )
    assert found.arrays == {"dense": DENSE, "kept": DENSE}


def test_a_dimension_that_the_array_does_not_have_repeats_nothing():
    odd = [
        part | {"details": "dimensions=1,9"} if part["op"] == "again" else part for part in masked()
    ]
    assert dense_fallback(program(*odd, *INPUTS, FUSED)).arrays == {}
