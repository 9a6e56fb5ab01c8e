from builders.hlo import LogicalBuffer, computation, dot, hlo_proto, op, shape_proto
from builders.protobuf import message, packed

from moeprof.ingest.hlo_shape import parse_shape
from moeprof.ingest.programs import parse_program
from moeprof.ingest.replica_groups import groups_text, iota_groups, parse_device_list


def shape(data: bytes):
    return parse_shape(data, 0, len(data))


def test_an_array_takes_elements_times_width():
    found = shape(shape_proto("bf16[8,128]"))
    assert (str(found), found.size_bytes) == ("bf16[8,128]", 8 * 128 * 2)


def test_a_scalar_is_one_element():
    assert shape(shape_proto("f32[]")).size_bytes == 4


def test_a_tuple_takes_the_sum_of_its_parts():
    found = shape(shape_proto("(f32[8], pred[3], f8e4m3fn[16])"))
    assert str(found) == "(f32[8], pred[3], f8e4m3fn[16])"
    assert found.size_bytes == 8 * 4 + 3 + 16


def test_four_bit_elements_take_a_byte_unless_the_layout_packs_them():
    s4 = message((2, 21), (3, packed([10])))
    assert shape(s4).size_bytes == 10
    assert shape(s4 + message((5, message((7, 4))))).size_bytes == 5


def test_an_unknown_element_type_keeps_its_number():
    assert str(shape(message((2, 99), (3, packed([4]))))) == "type99[4]"


def test_iota_groups_in_rows():
    assert iota_groups(2, 4, [8], []) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_transposed_iota_groups():
    # [4,2]<=[2,4]T(1,0): 0..7 as 2 rows of 4, read by columns
    assert iota_groups(4, 2, [2, 4], [1, 0]) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_an_iota_that_does_not_add_up_has_no_groups():
    assert iota_groups(2, 4, [9], []) == ()
    assert iota_groups(2, 4, [8], [1]) == ()
    assert iota_groups(2**40, 2**40, [2**40], []) == ()


def test_explicit_groups_are_written_as_hlo_does():
    data = message((1, message((1, packed([0, 1])))), (1, message((1, packed([2, 3])))))
    assert groups_text(parse_device_list(data, 0, len(data))) == "{{0,1},{2,3}}"


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
    buffers=[LogicalBuffer(1, "dot.1", 32), LogicalBuffer(2, "fusion.1", 16, offset_bytes=64)],
    heap=[(0, 1), (0, 2), (1, 1)],
)


def test_instructions_are_linked_by_name():
    module = parse_program(PROGRAM).module
    ops = {item.name: item for item in module.instructions}
    assert (module.name, module.entry) == ("jit_step", "main")
    assert ops["dot.1"].operands == ("x", "w")
    assert ops["fusion.1"].called == ("fused",)
    assert ops["call"].custom_call_target == "moeprof_grouped_gemm"
    assert ops["w"].parameter == 1
    assert ops["dot.1"].parameter == -1
    assert [item.name for item in module.instructions if item.is_root] == ["neg", "call"]


def test_frames_are_innermost_first():
    ops = {item.name: item for item in parse_program(PROGRAM).module.instructions}
    assert ops["dot.1"].frames == "moe.py:12:gate\ntrain.py:40:step"
    assert ops["x"].frames == ""


def test_contracting_dimensions_are_details():
    ops = {item.name: item for item in parse_program(PROGRAM).module.instructions}
    assert ops["dot.1"].details == "lhs_contracting=1 rhs_contracting=0"


def test_buffers_have_place_and_life():
    dot_1, fusion_1 = parse_program(PROGRAM).buffers
    assert (dot_1.op, dot_1.size_bytes, dot_1.offset_bytes) == ("dot.1", 32, 0)
    assert (dot_1.live_from, dot_1.live_to) == (0, 2)
    assert (fusion_1.offset_bytes, fusion_1.live_from, fusion_1.live_to) == (64, 1, 3)


def test_a_loop_in_the_frame_table_ends():
    index = message(
        (1, "a.py"), (2, "f"), (3, message((1, 1), (2, 1), (3, 5))), (4, message((1, 1), (2, 1)))
    )
    instruction = message(
        (1, "i"), (2, "add"), (3, shape_proto("f32[]")), (7, message((15, 1))), (35, 1)
    )
    module = message((3, message((1, "main"), (2, instruction), (5, 1), (6, 1))), (17, index))
    (item,) = parse_program(message((1, module))).module.instructions
    assert set(item.frames.splitlines()) == {"a.py:5:f"}
