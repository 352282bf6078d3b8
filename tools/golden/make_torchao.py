"""Writes the golden folders of TorchAO.

torchao's own classes hold every weight, its own code writes the files (flatten_tensor_state_dict and
transformers for safetensors, torch.save for the pickle), and its own dequantize gives the values. On a
CPU some classes cannot quantize (Int4Tensor and its relatives want kernels of a GPU): their codes and
scales are computed here and given to the class; tiles are laid out by PyTorch's documented order
(aten/src/ATen/native/cuda/int4mm.cu) and checked by nothing else. Expected weights are the exact
float32 values; where the class rounds its own to bf16, that rounding must agree with them.
"""

import copy
import shutil
import sys

import torch
from safetensors.torch import save_file
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, QuantizeTensorToNVFP4Kwargs
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8Tensor,
    FqnToConfig,
    Int4PlainInt32Tensor,
    Int4Tensor,
    Int4TilePackedTo4dTensor,
    Int8DynamicActivationIntxWeightConfig,
    Int8Tensor,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    PerRow,
    PerTensor,
)
from torchao.quantization.quantize_.workflows.float8.float8_tensor import (
    QuantizeTensorToFloat8Kwargs,
)
from torchao.quantization.quantize_.workflows.int8.int8_tensor import QuantizeTensorToInt8Kwargs
from transformers import AutoModelForCausalLM, TorchAoConfig

from common import GOLDEN
from slim import BF16, E4M3, after_factor, linears, mx, nvfp4, save_folder, slim_config
from slim import slim_tokens, to_e2m1, to_e4m3, token_e4m3, write_expected
from tiny import float_model, stable_logits, tiny_model

LAYER = "model.layers.0."
GROUP = 32


# Activations, float32 in and out.


def token_s8(x):
    """Symmetric: the largest magnitude is 127.5 steps."""
    scale = (x.abs().amax(-1, keepdim=True) / 127.5).clamp(min=1e-12)
    return (x / scale).round().clamp(-128, 127) * scale


def token_s8_asymmetric(x):
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    zero = (-128 - (low / scale).round()).clamp(-128, 127)
    return ((x / scale).round() + zero).clamp(-128, 127).sub(zero) * scale


def static_s8(scale):
    return lambda x: (x / scale.to(x.dtype)).round().clamp(-128, 127) * scale.to(x.dtype)


def call_e4m3(x):
    scale = x.abs().amax() / 448
    return to_e4m3(x * (1 / scale)) * scale


# Each returns (instance of a class, exact float32 weight, function of the input or None).


def grouped(weight, group):
    return weight.float().unflatten(1, (-1, group))


def int8(weight, granularity, act=None, static=None):
    arguments = {} if static is None else {"act_quant_scale": static}
    tool = Int8Tensor.from_hp(weight, granularity, act_quant_kwargs=act, **arguments)
    rows = tool.scale.float().repeat_interleave(tool.block_size[1], 1)
    run = None if act is None else token_s8 if static is None else static_s8(static)
    return tool, (tool.qdata.float() + 0.0) * rows, run


def intx(weight, bits, mapping, group=GROUP, act=None):
    dtype = getattr(torch, f"int{bits}")
    tool = IntxUnpackedToInt8Tensor.from_hp(weight, (1, group), dtype, mapping_type=mapping)
    if act is not None:
        tool.activation_quantization = act
    parts = grouped(tool.qdata, group) - tool.zero_point.float()[..., None]
    exact = (parts * tool.scale.float()[..., None] + 0.0).flatten(1)
    return tool, exact, None if act is None else token_s8_asymmetric


def int4_codes(weight):
    """(codes 0 to 15, scale, what 8 stands for), the latter two bf16 and a group's."""
    parts = grouped(weight, GROUP)
    low, high = parts.amin(2), parts.amax(2)
    scale = (high - low).clamp(min=1e-6) / 15
    zero = low + scale * 8
    code = ((parts - low[..., None]) / scale[..., None]).round().clamp(0, 15)
    scale, zero = scale.to(BF16), zero.to(BF16)
    exact = (code - 8) * scale.float()[..., None] + zero.float()[..., None]
    return code.flatten(1).int(), scale, zero, exact.flatten(1)


def int4(weight, factor=None):
    code, scale, zero, exact = int4_codes(weight)
    signed = (code - 8) & 15
    packed = (signed[:, ::2] | signed[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    tool = Int4Tensor(packed, scale.T.contiguous(), zero.T.contiguous(), [1, GROUP], weight.shape,
                      act_pre_scale=factor)  # fmt: skip
    return tool, exact, None if factor is None else after_factor(factor, lambda x: x)


def int4_words(weight):
    parts = grouped(weight, GROUP)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scale = ((high - low) / 15).to(BF16)
    zero = (-low / scale.float()).round().clamp(0, 15)
    code = ((parts / scale.float()[..., None]).round() + zero[..., None]).clamp(0, 15)
    exact = ((code - zero[..., None]) * scale.float()[..., None] + 0.0).flatten(1)
    words = code.flatten(1).long().unflatten(1, (-1, 8))
    words = (words << (4 * torch.arange(8))).sum(2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    tool = Int4PlainInt32Tensor(words, scale.T.contiguous(), zero.T.to(torch.int8).contiguous(),
                                [1, GROUP], weight.shape)  # fmt: skip
    return tool, exact, None


def int4_tiles(weight):
    code, scale, zero, exact = int4_codes(weight)
    rows, columns = weight.shape
    wide = -(-columns // 1024) * 1024
    filled = torch.zeros(rows, wide, dtype=torch.long)
    filled[:, :columns] = code
    n, k = torch.meshgrid(torch.arange(rows), torch.arange(wide), indexing="ij")
    word = ((n // 8 * (wide // 128) + k // 128) * 32 + n % 8 * 4 + k % 8 // 2) * 4 + k % 128 // 32
    nibble = k % 16 // 8 + 2 * (k % 32 // 16) + 4 * (k % 2)
    words = torch.zeros(rows * wide // 8, dtype=torch.long)
    words.index_add_(0, word.flatten(), (filled << (4 * nibble)).flatten())
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    pairs = torch.zeros(wide // GROUP, rows, 2, dtype=BF16)
    pairs[: columns // GROUP] = torch.stack([scale.T, zero.T], -1)
    tool = Int4TilePackedTo4dTensor(words.view(rows // 8, wide // 128, 32, 4), pairs, [1, GROUP],
                                    weight.shape)  # fmt: skip
    return tool, exact, None


def float8(weight, granularity, act=None, bound=None):
    arguments = None
    if act is not None:
        arguments = QuantizeTensorToFloat8Kwargs(E4M3, act, hp_value_ub=bound)
    tool = Float8Tensor.from_hp(weight, granularity=granularity, act_quant_kwargs=arguments)
    run = {PerRow: token_e4m3(bound), PerTensor: call_e4m3, type(None): None}[type(act)]
    return tool, tool.qdata.float() * tool.scale, run


def mx_tensor(weight, dtype, mode=ScaleCalculationMode.RCEIL, inputs=True, swizzled=True):
    arguments = QuantizeTensorToMXKwargs(dtype, 32, mode, is_swizzled_scales=swizzled)
    tool = MXTensor.to_mx(weight, dtype, 32, mode, act_quant_kwargs=arguments if inputs else None,
                          is_swizzled_scales=swizzled)  # fmt: skip
    run = mx(32, to_e4m3, 448) if dtype == E4M3 else mx(32, to_e2m1, 6)
    return tool, tool.dequantize(torch.float32), run if inputs else None


def nvfp4_tensor(weight, act_scale=None):
    arguments = None
    if act_scale is not None:
        arguments = QuantizeTensorToNVFP4Kwargs(16, is_swizzled_scales=True, use_triton_kernel=False,
                                                use_dynamic_per_tensor_scale=False)  # fmt: skip
    second = weight.float().abs().amax() / (448 * 6)
    tool = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=second, act_per_tensor_scale=act_scale,
                                is_swizzled_scales=True, use_triton_kernel=False,
                                act_quant_kwargs=arguments)  # fmt: skip
    return tool, tool.dequantize(torch.float32), None if act_scale is None else nvfp4(act_scale)


S8_ROWS = QuantizeTensorToInt8Kwargs(PerRow())
S8_TENSOR = QuantizeTensorToInt8Kwargs(PerTensor())
FACTOR = torch.linspace(0.5, 2, 64).to(BF16)

INTS = {
    "self_attn.q_proj": lambda w: int8(w, PerRow(), S8_ROWS),
    "self_attn.k_proj": int4_tiles,
    "self_attn.v_proj": lambda w: intx(w, 3, MappingType.ASYMMETRIC),
    "self_attn.o_proj": lambda w: int4(w, FACTOR),
    "mlp.gate_proj": int4_words,
    "mlp.up_proj": lambda w: intx(w, 4, MappingType.SYMMETRIC, act="int8_asym_per_token"),
    "mlp.down_proj": lambda w: int8(w, PerGroup(32)),
}
FLOATS = {
    "self_attn.q_proj": lambda w: float8(w, PerRow(), PerRow(), bound=2.5),
    "self_attn.k_proj": lambda w: float8(w, PerTensor()),
    "self_attn.v_proj": lambda w: mx_tensor(w, torch.float4_e2m1fn_x2),
    "self_attn.o_proj": lambda w: nvfp4_tensor(w, torch.tensor(0.01)),
    "mlp.gate_proj": nvfp4_tensor,
    "mlp.up_proj": lambda w: mx_tensor(w, E4M3),
    "mlp.down_proj": lambda w: float8(w, PerRow(), PerTensor()),
}
# Names as torchao 0.14 had them.
COLON = {
    "self_attn.q_proj": lambda w: float8(w, PerRow(), PerRow()),
    "mlp.up_proj": int4,
}
# torch.save.
PICKLE = {
    "self_attn.q_proj": lambda w: float8(w, PerRow(), PerRow()),
    "self_attn.o_proj": int4,
    "mlp.gate_proj": lambda w: intx(w, 5, MappingType.ASYMMETRIC, act="int8_asym_per_token"),
    "mlp.up_proj": lambda w: int8(w, PerRow(), S8_TENSOR, torch.tensor(0.03)),
    "mlp.down_proj": lambda w: mx_tensor(w, E4M3, ScaleCalculationMode.FLOOR, swizzled=False,
                                         inputs=False),
}  # fmt: skip


def prepared(case, kinds, seed, **changes):
    config = slim_config(tie_word_embeddings=True, **changes)
    model = tiny_model(config, seed=seed)
    tensors = {k: v.to(BF16) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    weights, runs = {}, {}
    for name in linears(model):
        kind = kinds.get(name.removeprefix(LAYER))
        if kind is None:
            continue
        tool, weights[name], run = kind(tensors[f"{name}.weight"])
        again = tool.dequantize() if "dequantize" in vars(type(tool)) else None
        if again is not None:
            assert torch.equal(again.to(BF16), weights[name].to(BF16)), (case, name)
        tensors[f"{name}.weight"] = tool
        if run is not None:
            runs[name] = run
    quantization = {"quant_method": "torchao", "modules_to_not_convert": None,
                    "include_input_output_embeddings": False, "untie_embedding_weights": False,
                    "quant_type": {"default": {"_type": "FqnToConfig", "_version": 1, "_data": {
                        "fqn_to_config": {}, "module_fqn_to_config": {}}}}}  # fmt: skip
    return config, tensors, weights, runs, quantization


def finish(folder, config, tensors, weights, runs, notes):
    (folder / "generation_config.json").unlink(missing_ok=True)
    plain = {k: v for k, v in tensors.items() if type(v) is torch.Tensor}
    write_expected(folder, config, plain, weights, runs, __file__,
                   ["torch", "transformers", "torchao"], notes)  # fmt: skip


def make(case, kinds, seed):
    config, tensors, weights, runs, quantization = prepared(case, kinds, seed)
    folder = save_folder(GOLDEN / "torchao" / case, config, {}, quantization)
    flat, metadata = flatten_tensor_state_dict(tensors)
    if case == "colon":
        spelled = {}
        for name, tensor in flat.items():
            module, _, inner = name.rpartition("._weight_")
            spelled[f"{module}.weight:{inner}" if module else f"{name}:_data"] = tensor
        flat = spelled
    if case == "pickle":
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({k: v.contiguous() for k, v in flat.items()}, folder / "model.safetensors",
                  {"format": "pt", **metadata})  # fmt: skip
    notes = {"colon": "names respelled as torchao 0.14 had them",
             "ints": "codes of the int4 classes by formula"}.get(case, "")  # fmt: skip
    finish(folder, config, tensors, weights, runs, notes)


def make_transformers():
    """What transformers saves: int8 embeddings and 4-bit linears with int8 inputs (INT8-INT4)."""
    config = slim_config(tie_word_embeddings=False)
    model = tiny_model(config, seed=705).to(BF16)
    base = GOLDEN / "torchao" / "base"
    model.save_pretrained(base)
    kinds = FqnToConfig({
        "_default": Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
        "model.embed_tokens": IntxWeightOnlyConfig(
            weight_dtype=torch.int8, granularity=PerAxis(0)),
        "re:.*v_proj": None,
    })  # fmt: skip
    quantization = TorchAoConfig(kinds, include_input_output_embeddings=True)
    loaded = AutoModelForCausalLM.from_pretrained(base, quantization_config=quantization, dtype=BF16)
    shutil.rmtree(base)
    folder = GOLDEN / "torchao" / "transformers"
    shutil.rmtree(folder, ignore_errors=True)
    loaded.save_pretrained(folder)
    tensors, weights, runs = {}, {}, {}
    for name, value in loaded.state_dict().items():
        tensors[name] = value
        if type(value) is torch.Tensor:
            continue
        module = name.removesuffix(".weight")
        group = value.block_size[1]
        parts = grouped(value.qdata, group) - value.zero_point.float()[..., None]
        weights[module] = (parts * value.scale.float().view(len(parts), -1, 1) + 0.0).flatten(1)
        if value.activation_quantization is not None:
            runs[module] = token_s8_asymmetric
    assert len(weights) == 8, list(weights)  # six linears, the embedding, and the head
    finish(folder, config, tensors, weights, runs, "")


CASES = {"ints": INTS, "floats": FLOATS, "colon": COLON, "pickle": PICKLE}

if __name__ == "__main__":
    for number, (case, kinds) in enumerate(CASES.items()):
        if case in (sys.argv[1:] or CASES):
            make(case, kinds, 701 + number)
    if not sys.argv[1:] or "transformers" in sys.argv[1:]:
        make_transformers()
