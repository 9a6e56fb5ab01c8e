import pytest
from builders.hlo import computation, dot, hlo_proto, op, shape_proto
from builders.protobuf import message, packed

from moeprof.ingest.hlo.programs import parse_program

FRAMES = [("moe.py", 12, "gate"), ("train.py", 40, "step")]
PROGRAM = hlo_proto(
    computation(
        "fused",
        op("p0", "parameter", "f32[4]"),
        op("neg", "negate", "f32[4]", "p0", op_name="jit(step)/jvp(moe)/neg"),
    ),
    computation(
        "main",
        op("x", "parameter", "f32[2,4]", op_name="x", parameter=0),
        op("w", "parameter", "f32[4,4]", op_name="params['w']", parameter=1),
        dot("dot.1", "f32[2,4]", "x", "w", op_name="jit(step)/moe/dot_general", frames=FRAMES),
        op("fusion.1", "fusion", "f32[4]", "dot.1", called=("fused",)),
        op("call", "custom-call", "f32[4]", "fusion.1", target="moeprof_grouped_gemm"),
    ),
    schedule={"main": ["w", "x", "dot.1", "fusion.1", "call"]},
)


def test_instructions_are_linked_by_name():
    module = parse_program(PROGRAM).module
    ops = {item.name: item for item in module.instructions}
    assert (module.name, module.entry) == ("jit_step", "main")
    assert ops["dot.1"].operands == ("x", "w")
    assert ops["fusion.1"].called == ("fused",)
    assert ops["call"].target == "moeprof_grouped_gemm"
    assert ops["w"].parameter == 1
    assert ops["dot.1"].parameter == -1
    assert [item.name for item in module.instructions if item.is_root] == ["neg", "call"]


def test_frames_are_innermost_first():
    ops = {item.name: item for item in parse_program(PROGRAM).module.instructions}
    assert ops["dot.1"].frames == (("moe.py", 12, "gate"), ("train.py", 40, "step"))
    assert ops["x"].frames == ()


def test_contracting_dimensions_are_details():
    ops = {item.name: item for item in parse_program(PROGRAM).module.instructions}
    assert ops["dot.1"].attributes.details_text == "lhs_contracting=1 rhs_contracting=0"


def test_the_schedule_is_the_place_in_the_order_of_the_computation():
    program = parse_program(PROGRAM)
    places = {item.name: item.schedule for item in program.module.instructions}
    assert program.head.is_scheduled
    assert [places[name] for name in ("w", "x", "dot.1", "call")] == [0, 1, 2, 4]
    assert places["neg"] == -1  # fusions have no order of their own


def only(*fields, opcode: str = "custom-call", shape: str = "f32[4]", module=(), **more):
    """The one instruction of a program, with these fields besides."""
    proto = hlo_proto(
        computation("main", op("x", opcode, shape, extra=fields, **more)), more=module
    )
    return parse_program(proto).module.instructions[0]


def test_a_ragged_dot_tells_its_ragged_and_group_dimensions():
    dims = message((1, message((1, packed([1])), (2, packed([1])))), (2, 0), (3, packed([0])))
    item = only((90, dims), opcode="ragged-dot")
    assert (
        item.attributes.details_text
        == "lhs_contracting=1 rhs_contracting=1 lhs_ragged=0 rhs_group=0"
    )


def test_a_collective_tells_its_channel_and_whose_ids_it_means():
    item = only((26, 3), (71, 1), (49, message((1, packed([0, 1])))), opcode="all-reduce")
    assert (item.channel_id, item.uses_global_ids, item.groups) == (3, True, ((0, 1),))
    bare = only(opcode="all-reduce")
    assert (bare.channel_id, bare.uses_global_ids, bare.groups) == (-1, False, ())


def test_a_collective_permute_tells_who_sends_to_whom():
    pairs = [(52, message((1, 0), (2, 1))), (52, message((1, 1), (2, 0)))]
    assert only(*pairs, opcode="collective-permute").pairs == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("number", "name"),
    [(4, "API_VERSION_TYPED_FFI"), (0, "API_VERSION_UNSPECIFIED"), (9, "API_VERSION_9")],
)
def test_a_custom_call_tells_its_convention(number, name):
    assert only((77, number), target="f").api_version == name


def test_a_backend_config_is_shown_as_text_or_as_bytes():
    assert only((43, b'{"a":1}')).config == '{"a":1}'
    assert only((43, b"\x08\xff")).config == "0x08ff"
    assert only().config == ""


def test_a_long_backend_config_is_cut_and_whole_on_demand():
    program = parse_program(
        hlo_proto(computation("main", op("x", "custom-call", "f32[4]", extra=((43, "y" * 5000),))))
    )
    assert program.module.instructions[0].config == "y" * 4096 + "…"
    assert program.backend_config("x") == "y" * 5000
    assert program.backend_config("nothing") == ""


def test_a_backend_config_may_stand_among_the_payloads_of_the_module():
    payloads = [(22, b"first"), (22, b"second")]
    assert only((99, message((2, 1))), module=payloads).config == "second"
    assert only((99, message((2, 7))), module=payloads).config == ""
    assert only((99, message((1, b"own"))), module=payloads).config == "own"


@pytest.mark.parametrize(
    ("shape", "element", "literal", "value"),
    [
        ("s32[]", 4, message((4, packed([-7]))), -7),
        ("s32[]", 4, message((4, -7)), -7),
        ("pred[]", 1, message((2, packed([1]))), 1),
        ("u8[]", 6, message((3, b"\xff")), 255),
        ("s64[]", 5, message((5, packed([1 << 40]))), 1 << 40),
        ("s32[2]", 4, message((4, packed([1, 2]))), None),
        ("f32[]", 11, message((8, b"\x00\x00\x80\x3f")), None),
        ("s32[]", 4, b"", None),
    ],
)
def test_a_constant_tells_a_scalar_of_whole_numbers(shape, element, literal, value):
    item = only((8, message((1, message((2, element)))) + literal), opcode="constant", shape=shape)
    assert item.attributes.constant == value
    assert item.attributes.details_text == ("" if value is None else f"value={value}")


def test_a_merged_op_name_is_kept_whole():
    assert only(op_name="jit(f)/(a:b:c)").op_name == "jit(f)/(a:b:c)"


def test_ids_of_any_width_link():
    # two instructions of computation 722: ids are computation << 32 | number
    ids = [722 << 32 | 1, 722 << 32 | 2]
    shape = shape_proto("f32[]")
    first = message((1, "a"), (2, "parameter"), (3, shape), (35, ids[0]))
    second = message((1, "b"), (2, "add"), (3, shape), (35, ids[1]), (36, packed([ids[0]] * 2)))
    part = message((1, "main"), (2, first), (2, second), (5, 722), (6, ids[1]))
    a, b = parse_program(message((1, message((3, part))))).module.instructions
    assert (a.id, b.operands, b.is_root) == (ids[0], ("a", "a"), True)


def test_an_instruction_without_frames_tells_its_line():
    where = message((2, "jit(f)/mul"), (3, "train.py"), (4, 12))
    item = message((1, "x"), (2, "add"), (3, shape_proto("f32[]")), (7, where), (35, 1))
    module = message((3, message((1, "main"), (2, item), (5, 1), (6, 1))))
    assert parse_program(message((1, module))).module.instructions[0].frames == (
        ("train.py", 12, ""),
    )


def test_a_loop_in_the_frame_table_ends():
    index = message(
        (1, "a.py"), (2, "f"), (3, message((1, 1), (2, 1), (3, 5))), (4, message((1, 1), (2, 1)))
    )
    instruction = message(
        (1, "i"), (2, "add"), (3, shape_proto("f32[]")), (7, message((15, 1))), (35, 1)
    )
    module = message((3, message((1, "main"), (2, instruction), (5, 1), (6, 1))), (17, index))
    (item,) = parse_program(message((1, module))).module.instructions
    assert set(item.frames) == {("a.py", 5, "f")}
