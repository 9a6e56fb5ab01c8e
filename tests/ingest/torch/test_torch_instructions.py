"""Which instruction a call is, by hand."""

import json

import pytest

from moeprof.hlo.instruction import NOT_READ
from moeprof.ingest.chrome_json.torch.calls import call_of
from moeprof.ingest.chrome_json.torch.instructions import made

BF16, F32, LONG = "c10::BFloat16", "float", "long int"


def call(name, *inputs, values=(), message=None):
    dims = json.dumps([dims for dims, _ in inputs]) if inputs else ""
    types = json.dumps([kind for _, kind in inputs]) if inputs else ""
    told = json.dumps(message) if message else ""
    return call_of(name, dims, types, json.dumps(list(values)) if values else "", told)


@pytest.mark.parametrize(
    ("name", "inputs", "result"),
    [
        ("aten::mm", [([4, 8], BF16), ([8, 16], BF16)], "bf16[4,16]"),
        ("aten::addmm", [([16], BF16), ([4, 8], BF16), ([8, 16], BF16)], "bf16[4,16]"),
        ("aten::bmm", [([3, 4, 8], F32), ([3, 8, 16], F32)], "f32[3,4,16]"),
    ],
)
def test_products(name, inputs, result):
    found = made(call(name, *inputs))
    assert (found.opcode, found.result.text) == ("dot", result)
    assert len(found.operands) == 2


def test_a_product_whose_inputs_do_not_fit_has_no_size():
    found = made(call("aten::mm", ([4, 8], BF16), ([9, 16], BF16)))
    assert found.result.size_bytes < 0


def test_a_scaled_product_has_the_type_that_it_is_asked_for():
    """``out_dtype`` is 15, c10::ScalarType::BFloat16."""
    fp8 = "c10::Float8_e4m3fn"
    found = made(
        call(
            "aten::_scaled_mm", ([4, 8], fp8), ([8, 16], fp8), values=["", "", "", "", "", "", "15"]
        )
    )
    assert found.result.text == "bf16[4,16]"


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [
        ([512, 256], [8, 256, 1024], "bf16[512,1024]"),  # rows by each expert's matrix
        ([256, 512], [512, 1024], "bf16[8,256,1024]"),  # gradients of the matrices
        ([8, 256, 64], [64, 1024], "bf16[256,1024]"),
    ],
)
def test_grouped_products(lhs, rhs, result):
    found = made(call("aten::_grouped_mm", (lhs, BF16), (rhs, BF16), ([8], "int")))
    assert (found.target, found.result.text) == ("aten::_grouped_mm", result)


@pytest.mark.parametrize(
    ("name", "lhs", "rhs", "result"),
    [
        ("primus_turbo::grouped_gemm", [512, 256], [8, 1024, 256], "bf16[512,1024]"),
        ("x::ck_grouped_gemm_variable_k", [512, 256], [512, 1024], "bf16[8,256,1024]"),
        ("GroupedGemm", [512, 256], [8, 256, 1024], "bf16[512,1024]"),
    ],
)
def test_grouped_products_of_libraries(name, lhs, rhs, result):
    """Matrices may be transposed; gradients sum over the rows of both."""
    assert made(call(name, (lhs, BF16), (rhs, BF16), ([8], LONG))).result.text == result


@pytest.mark.parametrize(
    ("name", "begin", "place"),
    [("flash_attn::_flash_attn_forward", 0, 5), ("aiter::mha_bwd", 1, 8)],
)
def test_attention_of_libraries(name, begin, place):
    inputs = [([2, 128, 4, 64], BF16)] * (begin + 3)
    values = [""] * place + ["True"]
    config = json.loads(made(call(name, *inputs, values=values)).config)
    scores = config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"]
    assert scores == [2, 4, 128, 128]


def test_attention_without_a_word_on_its_mask_has_no_flops():
    inputs = [([2, 4, 128, 64], BF16)] * 3
    name = "aten::_scaled_dot_product_flash_attention"
    assert made(call(name, *inputs)).config == ""
    config = json.loads(made(call(name, *inputs, values=["", "", "", "0.", "True"])).config)
    assert config["cudnn_fmha_backend_config"] == {
        "intermediate_tensor_shape": {"dimensions": [2, 4, 128, 128]},
        "mask_type": "CAUSAL",
    }


def test_flash_attention_has_rows_before_heads():
    inputs = [([2, 128, 4, 64], BF16)] * 3
    values = ["", "", "", "", "", "128", "128", "0.", "False"]
    found = made(call("aten::_flash_attention_forward", *inputs, values=values))
    assert found.result.text == "bf16[2,4,128,64]"


def test_a_convolution_by_its_windows():
    """(32 + 2 · 1 - 3) / 2 + 1 = 16."""
    inputs = [([2, 3, 32, 32], F32), ([8, 3, 3, 3], F32), ([8], F32)]
    values = ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    found = made(call("aten::miopen_convolution", *inputs, values=values))
    assert (found.opcode, found.result.text) == ("convolution", "f32[2,8,16,16]")
    bad = [*values[:4], "[0, 0]", *values[5:]]
    assert made(call("aten::miopen_convolution", *inputs, values=bad)).opcode == "custom-call"


@pytest.mark.parametrize(
    ("name", "inputs", "opcode", "result"),
    [
        ("aten::mul", [([4, 1, 8], BF16), ([3, 1], BF16)], "map", "bf16[4,3,8]"),
        ("aten::add_", [([4, 8], F32), ([8], F32)], "map", "f32[4,8]"),
        ("aten::copy_", [([4, 8], F32), ([8], F32)], "copy", "f32[4,8]"),
        ("aten::sum", [([4, 8], F32)], "reduce", ""),
        ("aten::index_add", [([4, 8], F32), ([9], LONG), ([9, 8], F32)], "scatter", ""),
        ("mine::secret", [([4, 8], F32)], "custom-call", ""),
    ],
)
def test_other_ops(name, inputs, opcode, result):
    found = made(call(name, *inputs))
    assert (found.opcode, found.result.text) == (opcode, result)


def test_shapes_that_do_not_spread_over_each_other_leave_the_result_unknown():
    assert made(call("aten::mul", ([4, 3], F32), ([5], F32))).result.text == ""


def test_a_list_of_tensors_has_no_type():
    found = made(call("aten::cat", ([[4, 8], [2, 8]], "TensorList")))
    assert found.opcode == "copy"
    assert all(shape.size_bytes < 0 for shape in found.operands)


MESSAGE = {
    **{"Collective name": "_allgather_base", "Process Group Name": "3", "dtype": "BFloat16"},
    **{"In msg nelems": 64, "Out msg nelems": 256, "Group size": 4},
    "Process Group Ranks": "[0, 2, 4, 6]",
}


def test_a_collective_says_its_size_and_ranks():
    found = made(call("record_param_comms", message=MESSAGE))
    assert (found.opcode, found.result.text) == ("all-gather", "bf16[256]")
    assert found.groups == ((0, 2, 4, 6),)


def test_ranks_of_a_large_group_follow_from_start_and_stride():
    """The profiler cuts a list of more than 30 ranks."""
    cut = {"Process Group Ranks": "[0, 2, ..., 126]", "Group size": 64}
    cut |= {"Global rank start": 0, "Global rank stride": 2}
    found = made(call("record_param_comms", message=MESSAGE | cut))
    assert found.groups == (tuple(range(0, 128, 2)),)


def test_ranks_that_are_not_told_are_not_known():
    cut = {"Process Group Ranks": "[0, 2, ..., 126]", "Group size": 64}
    assert made(call("record_param_comms", message=MESSAGE | cut)).groups == NOT_READ


def test_what_one_rank_has_the_result_of_has_no_size():
    """HLO has no such collective, and the bus factor of another would be wrong."""
    found = made(call("record_param_comms", message=MESSAGE | {"Collective name": "reduce"}))
    assert found.result.size_bytes < 0


def test_sizes_beyond_any_device_are_not_known():
    found = made(call("aten::mm", ([2**61, 2**61], F32), ([2**61, 2**61], F32)))
    assert found.result.size_bytes < 0


@pytest.mark.parametrize(
    ("name", "types", "result"),
    [
        ("aten::eq", (LONG, LONG), "pred[8]"),
        ("aten::where", ("bool", F32, F32), "f32[8]"),
        ("aten::mul", (BF16, F32), ""),
        ("aten::cumsum", ("bool",), "s64[8]"),
    ],
)
def test_element_types_of_results(name, types, result):
    assert made(call(name, *(([8], kind) for kind in types))).result.text == result


def test_a_collective_of_another_name_is_no_known_one():
    found = made(call("record_param_comms", message=MESSAGE | {"Collective name": "mine"}))
    assert found.opcode == "custom-call"
