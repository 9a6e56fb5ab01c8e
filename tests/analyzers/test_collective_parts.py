"""Which part is a collective of, where its name and line do not tell?

D = 8 features, F = 12, E = 4 experts, 16 tokens, top-2, 4 devices.
"""

from builders.programs import program
from builders.work import hlo

from moeprof.analyzers.classify import classify

FORWARD, BACKWARD = "jit(f)/jvp()/", "jit(f)/transpose(jvp())/"


def components(*rows):
    return classify({7: program(*rows)}).pandas().set_index("op")["component"].to_dict()


def test_a_row_of_all_gradients_that_devices_sum_is_their_reduction():
    found = components(
        hlo("x", "parameter", shape="f32[16,8]", parameter=0),
        hlo("w", "parameter", shape="f32[8,12]", parameter=1),
        hlo("y", "dot", "x w", shape="f32[16,12]", op_name=FORWARD + "dot_general"),
        hlo("dw", "dot", "x y", shape="f32[8,12]", op_name=BACKWARD + "dot_general"),
        hlo("row", "reshape", "dw", shape="f32[96]", op_name="jit(f)/reshape"),
        hlo("bucket", "concatenate", "row row", shape="f32[192]", op_name="jit(f)/concatenate"),
        hlo("sum", "all-reduce", "bucket", shape="f32[192]", op_name="jit(f)/psum"),
        hlo("few", "slice", "bucket", shape="f32[5]", op_name="jit(f)/slice"),
        hlo("count", "all-reduce", "few", shape="f32[5]", op_name="jit(f)/psum"),
    )
    assert found["sum"] == "gradient_reduce"
    assert found["count"] == "collectives"


def test_an_exchange_by_a_helper_s_line_is_told_by_what_it_sends():
    """One line sends tokens and results; the gradients of both have other lines around it."""

    def at(line):
        return f"/u/parts.py:3:constrain\n/u/model.py:{line}:moe\n/u/model.py:90:main"

    def exchange(name, given, line, phase, shape):
        return hlo(
            name, "all-to-all", given, shape=shape,
            op_name=f"{phase}sharding_constraint", frames=at(line),
        )  # fmt: skip

    def product(name, given, phase, shape):
        along = "lhs_batch=0 rhs_batch=0 lhs_contracting=2 rhs_contracting=1"
        return hlo(name, "dot", given, shape=shape, op_name=f"{phase}dot_general", details=along)

    found = components(
        hlo("ids", "parameter", shape="s32[16]", parameter=0),
        hlo("table", "parameter", shape="f32[50,8]", parameter=1),
        hlo("gate", "parameter", shape="f32[8,4]", parameter=2),
        hlo("up", "parameter", shape="f32[4,8,12]", parameter=3),
        hlo("down", "parameter", shape="f32[4,12,8]", parameter=4),
        hlo("x", "gather", "table ids", shape="f32[16,8]", op_name=FORWARD + "gather"),
        hlo("scores", "dot", "x gate", shape="f32[16,4]", op_name=FORWARD + "dot_general"),
        hlo(
            "chosen", "topk", "scores",
            shape="(f32[16,2], s32[16,2])", op_name=FORWARD + "top_k",
        ),
        hlo("which", "get-tuple-element", "chosen", shape="s32[16,2]", details="index=1"),
        hlo("rows", "gather", "x which", shape="f32[4,8,8]", op_name=FORWARD + "gather"),
        exchange("out", "rows", 10, FORWARD, "f32[4,8,8]"),
        product("wide", "out up", FORWARD, "f32[4,8,12]"),
        product("narrow", "wide down", FORWARD, "f32[4,8,8]"),
        exchange("back", "narrow", 20, FORWARD, "f32[4,8,8]"),
        hlo(
            "y", "gather", "back which", shape="f32[16,8]",
            op_name=FORWARD + "gather", frames="/u/model.py:25:moe",
        ),
        hlo("z", "add", "x y", shape="f32[16,8]", op_name=FORWARD + "add"),
        hlo(
            "dy", "scatter", "y which y", shape="f32[4,8,8]",
            op_name=BACKWARD + "scatter-add", frames="/u/model.py:25:moe",
        ),
        exchange("dback", "dy", 19, BACKWARD, "f32[4,8,8]"),
        product("dwide", "dback down", BACKWARD, "f32[4,8,12]"),
        product("drows", "dwide up", BACKWARD, "f32[4,8,8]"),
        exchange("dout", "drows", 9, BACKWARD, "f32[4,8,8]"),
    )  # fmt: skip
    assert (found["out"], found["back"]) == ("dispatch", "combine")
    assert (found["dback"], found["dout"]) == ("combine", "dispatch")


def sums_of_experts(splits):
    """A stack of 3 layers, 4 experts [12, 8]: a device keeps one, and half of its columns."""
    return components(
        hlo("x", "parameter", shape="f32[20,8]", parameter=0),
        hlo("w", "parameter", shape="f32[1,3,12,4]", parameter=1, attributes=splits),
        hlo("y", "dot", "x w", shape="f32[20,12]", op_name=FORWARD + "dot_general"),
        hlo("dw", "dot", "x y", shape="f32[4,12,8]", op_name=BACKWARD + "dot_general"),
        hlo(
            "over_experts", "all-reduce", "dw", shape="f32[4,12,8]",
            replica_groups="{{0,1,2,3},{4,5,6,7}}", op_name=BACKWARD + "dot_general",
        ),
        hlo("own", "slice", "over_experts", shape="f32[1,12,8]"),
        hlo(
            "over_fsdp", "all-reduce", "own", shape="f32[1,12,8]",
            replica_groups="{{0,4},{1,5},{2,6},{3,7}}", op_name=BACKWARD + "dot_general",
        ),
        hlo(
            "tokens", "all-reduce", "y", shape="f32[20,12]",
            replica_groups="{{0,1,2,3},{4,5,6,7}}", op_name=BACKWARD + "dot_general",
        ),
    )  # fmt: skip


def test_gradients_of_weights_that_are_split_along_several_axes_are_summed_over_each():
    found = sums_of_experts("splits=4,1,1,2")
    assert found["over_experts"] == found["over_fsdp"] == "gradient_reduce"
    assert found["tokens"] == "collectives"


def test_what_is_split_otherwise_is_no_gradient_for_certain():
    for splits in ("", "splits=2,1,1,2"):
        assert sums_of_experts(splits)["over_experts"] == "collectives"


def joined_phase(norm_of):
    """Phase of a sum of the loss and of a norm, which XLA makes one of."""
    found = classify(
        {
            7: program(
                hlo("x", "parameter", shape="f32[16,8]", parameter=0),
                hlo("w", "parameter", shape="f32[8,12]", parameter=1),
                hlo("y", "dot", "x w", shape="f32[16,12]", op_name=FORWARD + "dot_general"),
                hlo("loss", "reduce", "y", shape="f32[]", op_name=FORWARD + "reduce_sum"),
                hlo("dw", "dot", "x y", shape="f32[8,12]", op_name=BACKWARD + "dot_general"),
                hlo("norm", "reduce", norm_of, shape="f32[]", op_name="jit(f)/reduce_sum"),
                hlo(
                    "both",
                    "all-reduce",
                    "loss norm",
                    shape="(f32[], f32[])",
                    op_name="jit(f)/(jvp()/reduce_sum:reduce_sum)",
                ),
            )
        }
    ).pandas()
    return found.set_index("op")["phase"]["both"]


def test_a_sum_of_the_loss_and_of_norms_runs_behind_the_gradients_that_it_waits_for():
    assert joined_phase("dw") == "other"
    assert joined_phase("w") == "forward"
