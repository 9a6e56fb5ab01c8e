"""Which instruction of a program is a call of PyTorch, by its name and inputs?

The inputs' shapes and types are those that ``record_shapes`` writes; without them an instruction
is known by its name alone, and has no size. What a result looks like nothing writes: it follows
from the inputs where the op leaves one way, else it is not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from moeprof.hlo.attributes import Attributes, DotDims
from moeprof.hlo.instruction import NO_SHAPE, Instruction
from moeprof.hlo.shape import Shape
from moeprof.ingest.chrome_json.torch.calls import Call, Made, collective, numbers_in

_SCALAR_TYPES = {"5": "f16", "6": "f32", "7": "f64", "15": "bf16"}
"""The same by number, as an op's argument (c10::ScalarType)."""
# What each op is among HLO's instructions.


def made(call: Call) -> Made:
    """The instruction that a call is; of an op that nothing is known of a custom call."""
    if call.message is not None:
        return collective(call)
    plain = call.name.rpartition("::")[2]
    maker = _MAKERS.get(plain) or _MAKERS.get(plain.removesuffix("_"))
    known = maker(call) if maker is not None and call.tensors else None
    if known is not None:
        return known
    for pattern, opcode in _BY_NAME:
        if pattern.fullmatch(plain):
            return _sized(call, opcode)
    return _sized(call, "map" if _SAME.fullmatch(plain) else "custom-call")


_BY_NAME = tuple(
    (re.compile(pattern), opcode)
    for pattern, opcode in (
        (r"_?(copy_?|clone|contiguous|_to_copy|to|cat|stack|repeat|roll|flip|pad)", "copy"),
        (r"(constant_pad_nd|repeat_interleave|_pin_memory|narrow_copy)", "copy"),
        (r"(fill_?|zero_?|zeros\w*|ones\w*|full\w*|arange|_foreach_zero_)", "broadcast"),
        (r"(sort|argsort|msort)", "sort"),
        (r"(topk|kthvalue)", "topk"),
        (r"(index|index_select|gather|embedding|take\w*|_index_select)", "gather"),
        (r"(_?index_put\w*|index_add_?|index_copy_?|scatter\w*|masked_scatter\w*)", "scatter"),
        (r"(embedding_dense_backward|embedding_backward|index_reduce_?)", "scatter"),
        (r"(sum|mean|amax|amin|max|min|prod|var|std|norm|linalg_vector_norm|all|any)", "reduce"),
        (r"(argmax|argmin|cumsum|cumprod|bincount|histc|nonzero|unique\w*|_unique\w*)", "reduce"),
        (r"(logsumexp|var_mean|count_nonzero|_foreach_norm|native_batch_norm\w*)", "reduce"),
        (r"_?(log_)?softmax\w*|_?(native_|fused_)?(layer|rms|group|batch)_norm\w*", "reduce"),
        (r"nll_loss\w*|_softmax_backward_data|_log_softmax_backward_data", "reduce"),
        (r"triton_poi_\w+", "map"),
        (r"triton_per_\w*(sort|topk)\w*", "sort"),
        (r"triton_(red|per|split_scan)_\w+", "reduce"),
        (r"_foreach_\w+|_fused_(adam|adamw|sgd|adagrad)_?", "map"),
    )
)
"""Ops by the end of their name -> HLO's opcode. What no row names is a custom call of its name."""
_SAME = re.compile(
    r"(add|sub|mul|div|rsub|neg|pow|exp|log|sqrt|rsqrt|reciprocal|tanh|sigmoid|silu|gelu|relu|abs|"
    r"clamp\w*|where|masked_fill|eq|ne|lt|le|gt|ge|bitwise_\w+|logical_\w+|remainder|floor_divide|"
    r"silu_backward|gelu_backward|sigmoid_backward|tanh_backward|threshold_backward|addcmul|"
    r"addcdiv|lerp|maximum|minimum|native_dropout\w*|dropout|copy|clone|_to_copy|fill|zero|"
    r"_?softmax|_?log_softmax|_softmax_backward_data|_log_softmax_backward_data|cumsum|"
    r"native_layer_norm|layer_norm|_fused_rms_norm|rms_norm)_?"
)
"""Ops whose result has the shape of their inputs, spread over one another."""


def _sized(call: Call, opcode: str) -> Made:
    """An op that moves its inputs and what they give."""
    plain = call.name.rpartition("::")[2]
    tensors = call.tensors
    result, operands = NO_SHAPE, tensors
    if tensors and _SAME.fullmatch(plain):
        is_in_place = plain.endswith("_")
        dims = tensors[0].dims if is_in_place else _spread([one.dims for one in tensors])
        dtype = tensors[0].dtype if is_in_place else _result_dtype(plain, tensors)
        result = Shape(dtype, dims) if dims is not None and dtype else NO_SHAPE
        if plain in ("copy_", "fill_", "zero_"):
            operands = tensors[1:]
    return Made(opcode, result, operands, target=call.name if opcode == "custom-call" else "")


_COMPARES = re.compile(r"eq|ne|lt|le|gt|ge|logical_\w+|isnan|isinf|isfinite")


def _result_dtype(plain: str, tensors: Sequence[Shape]) -> str:
    """Element type of what an op makes of its inputs; empty where they differ in theirs."""
    if _COMPARES.fullmatch(plain):
        return "pred"
    dtypes = {one.dtype for one in (tensors[1:] if plain == "where" else tensors)}
    if plain == "cumsum" and not tensors[0].is_float:
        return "s64"
    return dtypes.pop() if len(dtypes) == 1 else ""


def _spread(dims: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that all of these spread over; None where they do not fit together."""
    longest = max(map(len, dims), default=0)
    found = [1] * longest
    for one in dims:
        for place, size in enumerate(one, longest - len(one)):
            if size != 1 and found[place] not in (1, size):
                return None
            found[place] = size if size != 1 else found[place]
    return tuple(found)


def _product(first: int, second: int) -> Callable[[Call], Made | None]:
    """[…, M, K] × […, K, N], of the inputs at these places."""

    def maker(call: Call) -> Made | None:
        pair = [call.inputs[at] if at < len(call.inputs) else None for at in (first, second)]
        lhs, rhs = pair
        if not isinstance(lhs, Shape) or not isinstance(rhs, Shape):
            return None
        rank = len(lhs.dims)
        if rank not in (2, 3) or len(rhs.dims) != rank or lhs.dims[-1] != rhs.dims[-2]:
            return None
        batch = tuple(range(rank - 2))
        numbers = DotDims((rank - 1,), (rank - 2,), batch, batch)
        dtype = "s32" if call.name.endswith("_int_mm") else lhs.dtype
        if call.name.endswith("_scaled_mm"):
            dtype = next((_SCALAR_TYPES[v] for v in call.values if v in _SCALAR_TYPES), "bf16")
        result = Shape(dtype, (*lhs.dims[:-1], rhs.dims[-1]))
        return Made("dot", result, (lhs, rhs), Attributes(dot=numbers))

    return maker


def _grouped(call: Call) -> Made | None:
    """Rows by each group's matrix, or the gradients of these.

    ATen's four forms, and those of Primus-Turbo and grouped_gemm, whose matrices may be transposed
    and whose gradients sum over the first dimension of both.
    """
    floats = [one for one in call.inputs if isinstance(one, Shape) and one.is_float]
    counts = [one for one in call.tensors if one.is_whole and len(one.dims) == 1]
    if len(floats) < 2:
        return None
    lhs, rhs = floats[:2]
    dtype = "bf16" if lhs.dtype.startswith("f8") else lhs.dtype
    dims = _grouped_dims(lhs.dims, rhs.dims, counts[0].dims[0] if counts else 0)
    if dims is None:
        return _product(0, 1)(call)
    operands = (rhs, lhs) if len(lhs.dims) == 3 else (lhs, rhs)
    return Made("custom-call", Shape(dtype, dims), (*operands, *counts), target=call.name)


def _grouped_dims(
    lhs: tuple[int, ...], rhs: tuple[int, ...], groups: int
) -> tuple[int, ...] | None:
    """Dimensions of a grouped product's result; None where the operands do not fit."""
    ranks = len(lhs), len(rhs)
    if ranks == (2, 3) and lhs[1] in rhs[1:]:
        return lhs[0], rhs[2] if lhs[1] == rhs[1] else rhs[1]
    if ranks == (3, 2) and lhs[2] == rhs[0]:
        return lhs[1], rhs[1]
    if ranks == (2, 2) and groups and lhs[1] == rhs[0]:
        return groups, lhs[0], rhs[1]
    if ranks == (2, 2) and groups and lhs[0] == rhs[0]:
        return groups, lhs[1], rhs[1]
    return None


_CAUSAL = {
    **{"_scaled_dot_product_flash_attention": 4, "_scaled_dot_product_efficient_attention": 6},
    **{"_scaled_dot_product_cudnn_attention": 6, "_cudnn_attention_forward": 10},
    **{"_flash_attention_forward": 8, "_efficient_attention_forward": 9},
    **{"_scaled_dot_product_flash_attention_backward": 11, "_flash_attention_backward": 11},
    **{"_scaled_dot_product_efficient_attention_backward": 11},
    **{"_efficient_attention_backward": 14},
    **{"_scaled_dot_product_cudnn_attention_backward": 14, "_cudnn_attention_backward": 14},
    **{"_scaled_dot_product_fused_attention_overrideable": 5},
    **{"_flash_attn_forward": 5, "_flash_attn_backward": 11},
    **{"mha_fwd": 5, "mha_bwd": 8, "fmha_v3_fwd": 5, "fmha_v3_bwd": 8},
}
"""Attention -> the place of ``is_causal`` among its inputs: of ATen (native_functions.yaml), of
flash-attn (flash_attn_interface.py) and of AITER (aiter/ops/mha.py)."""
_ROWS_FIRST = re.compile(
    r"_(flash|efficient)_attention_(forward|backward)|_flash_attn_\w+|f?mha_(v3_)?(fwd|bwd)"
)
"""Those that take [B, S, H, D]; all others take [B, H, S, D]."""
_MASKS = {**dict.fromkeys(("true", "1", "2"), "CAUSAL"), **dict.fromkeys(("false", "0"), "NO_MASK")}
"""Of the efficient ones by number (CustomMaskType): none, and causal from two corners."""


def _attention(call: Call) -> Made | None:
    """Fused attention, as cuDNN's call in HLO states it: scores [B, H, Sq, Sk], a mask."""
    plain = call.name.rpartition("::")[2]
    begin = 1 if plain.endswith(("_backward", "_bwd")) else 0
    found = [one for one in call.inputs[begin : begin + 3] if isinstance(one, Shape)]
    if len(found) < 3 or any(len(one.dims) != 4 for one in found):
        return None
    if _ROWS_FIRST.fullmatch(plain):
        found = [Shape(o.dtype, (o.dims[0], o.dims[2], o.dims[1], o.dims[3])) for o in found]
    query, key, value = found
    scores = [*query.dims[:3], key.dims[2]]
    config: dict[str, object] = {"intermediate_tensor_shape": {"dimensions": scores}}
    mask = _MASKS.get(call.value(_CAUSAL[plain]).lower())
    result = Shape(query.dtype, (*query.dims[:3], value.dims[3]))
    config["mask_type"] = mask
    # whether a mask leaves half of it out is not known without its name
    text = json.dumps({"cudnn_fmha_backend_config": config}) if mask else ""
    return Made("custom-call", result, (query, key, value), target=call.name, config=text)


_WINDOWS = {
    **dict.fromkeys(("mkldnn_convolution", "miopen_convolution"), (4, 3, 5)),
    "cudnn_convolution": (3, 2, 4),
}
"""ATen's convolutions -> places of stride, padding and dilation (native_functions.yaml). Those that
only call one of these compute nothing themselves."""


def _convolution(call: Call) -> Made | None:
    """Input [N, C, …] by kernel [O, C / groups, …]; sizes by padding, stride and dilation."""
    pair = [one for one in call.inputs[:2] if isinstance(one, Shape)]
    if len(pair) < 2:
        return None
    image, kernel = pair
    plain = call.name.rpartition("::")[2]
    stride, padding, dilation = (numbers_in(call.value(at)) for at in _WINDOWS[plain])
    sizes = []
    for at, size in enumerate(image.dims[2:]):
        if at >= min(len(stride), len(padding), len(dilation), len(kernel.dims) - 2):
            return None
        if stride[at] < 1:
            return None
        reach = dilation[at] * (kernel.dims[2 + at] - 1) + 1
        sizes.append((size + 2 * padding[at] - reach) // stride[at] + 1)
    result = Shape(image.dtype, (image.dims[0], kernel.dims[0], *sizes))
    numbers = Attributes(kernel_output=0)
    return Made("convolution", result, (image, kernel), numbers)


_MAKERS: Mapping[str, Callable[[Call], Made | None]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "gmm", "GroupedGemm"), _grouped),
    **dict.fromkeys(("grouped_gemm", "ck_grouped_gemm", "hipblaslt_grouped_gemm"), _grouped),
    **dict.fromkeys(("ck_grouped_gemm_variable_k", "grouped_gemm_variable_k"), _grouped),
    **dict.fromkeys(("grouped_gemm_impl", "grouped_gemm_variable_k_impl"), _grouped),
    **dict.fromkeys(_CAUSAL, _attention),
    **dict.fromkeys(_WINDOWS, _convolution),
}
"""Ops by the end of their name whose sizes are known -> what they are."""


def instruction(made: Made, name: str, operands: Sequence[str], **more: object) -> Instruction:
    """The instruction of a name, whose operands have these."""
    return Instruction(
        name,
        made.opcode,
        made.result,
        operands=tuple(operands),
        attributes=made.attributes,
        size_bytes=made.result.size_bytes if made.result.is_array else -1,
        target=made.target,
        config=made.config,
        groups=made.groups,
        **more,  # type: ignore[arg-type]
    )
