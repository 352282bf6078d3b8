"""Writes the golden folders of the schemes that are codes with scales beside them: petit_nvfp4, mxfp4,
mxfp8, fbgemm_fp8, w8a8_fp8, w8a8_int8, blockwise_int8, qoq, and fp8 made while loading.

No tool of these formats writes a folder on a CPU from end to end, but most have the function that
quantizes a weight, which is called here: deepcompressor packs qoq, NVIDIA's NVFP4QTensor petit_nvfp4,
torchao's to_mx quantizes mxfp8, fbgemm's quantize_fp8_row fbgemm_fp8, compressed-tensors w8a8_fp8 and
w8a8_int8; their own dequantization, where there is one, and transformers' reader of gpt-oss for mxfp4
must agree with the weights. blockwise_int8, which only SGLang's kernels for cards know, scales of
type e8m0 in w8a8_fp8, and mxfp4 are quantized by their formulas. Expected weights are the exact
float32 values.
"""

import json
import sys

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from deepcompressor.backend.qserve.utils import convert_to_qserve_w4x8y16_linear_weight
from fbgemm_gpu.experimental.gemm.triton_gemm.fp8_gemm import quantize_fp8_row
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

from common import GOLDEN, crc32
from slim import BF16, E2M1, E4M3, group_s8, linears, mx, save_folder, slim_config, static_e4m3
from slim import slim_tokens, to_e4m3, token_e4m3, token_s8, write_expected
from tiny import float_model, logits, tiny_model, write_logits

E8M0 = torch.float8_e8m0fnu
O_PROJ = "model.layers.0.self_attn.o_proj"
RAGGED = dict(intermediate_size=144)
WIDE = dict(hidden_size=128, intermediate_size=128)
NARROW = dict(hidden_size=128, intermediate_size=32, head_dim=16, num_attention_heads=2,
              num_key_value_heads=2, vocab_size=32)  # fmt: skip


def spread(scale, area, shape):
    """One scale an area (rows, columns) -> one an element."""
    full = scale.repeat_interleave(area[0], 0).repeat_interleave(area[1], 1)
    return full[: shape[0], : shape[1]]


def area_max(weight, area):
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % area[1], 0, -rows % area[0]))
    return padded.unflatten(1, (-1, area[1])).unflatten(0, (-1, area[0])).abs().amax((1, 3))


def e8m0_bytes(most, largest):
    """The power of two, rounded up, that brings `most` to at most `largest`; its byte."""
    exponent = (most / largest).double().log2().ceil().clamp(-127, 127)
    exponent = torch.where(most == 0, -127.0, exponent)
    return (exponent + 127).to(torch.uint8), torch.exp2(exponent).float()


def e2m1_codes(x):
    """The nearest code, ties to the even one; the sign of -0 is kept out."""
    magnitude = x.abs().clamp(max=6)
    middles = (E2M1[:-1] + E2M1[1:]) / 2
    code = torch.bucketize(magnitude, middles)
    code = code + ((magnitude == middles[code.clamp(max=6)]) & (code % 2 == 1)).long()
    return (code + torch.where((x < 0) & (code > 0), 8, 0)).to(torch.uint8)


def e2m1_values(code):
    return E2M1[(code & 7).long()] * torch.where(code >= 8, -1.0, 1.0)


def pack(code):
    return code[:, ::2] | code[:, 1::2] << 4


# Each returns ({suffix: tensor}, exact float32 weight).


def mxfp4(weight, names, blocks):
    byte, scale = e8m0_bytes(area_max(weight, (1, 32)), 6)
    full = spread(scale, (1, 32), weight.shape)
    code = e2m1_codes(weight / full)
    exact = e2m1_values(code) * full
    stored = pack(code).unflatten(1, (-1, 16))
    tool = _convert_moe_packed_tensors(stored[None], byte[None], dtype=torch.float32)[0].T
    assert torch.equal(tool, exact)
    return {names[0]: stored if blocks else stored.flatten(1), names[1]: byte}, exact


def mxfp8(weight, name, dtype):
    scale, code = to_mx(weight.to(BF16), E4M3, 32, ScaleCalculationMode.RCEIL)
    exact = code.float() * spread(scale.float(), (1, 32), weight.shape)
    assert torch.equal(to_dtype(code, scale, E4M3, 32, torch.float32), exact)
    return {"weight": code, name: scale.view(torch.uint8).view(dtype)}, exact


def nvfp4(weight):
    tool, scale, second = NVFP4QTensor.quantize(weight, 16)
    packed = tool._quantized_data
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    exact = e2m1_values(code) * spread(scale.float() * second, (1, 16), weight.shape)
    again = tool.dequantize(scale=scale, double_scale=second, block_sizes={-1: 16})
    assert torch.equal(again.float(), exact)
    stored = {"weight": packed, "weight_scale": scale, "weight_scale_2": second,
              "input_scale": torch.tensor(0.01)}  # fmt: skip
    return stored, exact


def row_fp8(weight):
    code, scale = quantize_fp8_row(weight.to(BF16))
    return {"weight": code, "weight_scale": scale[:, None]}, code.float() * scale[:, None]


def per_output(weight, kind):
    """By compressed-tensors, which llm-compressor calls; kind: its name of the numbers."""
    args = QuantizationArgs(num_bits=8, type=kind, strategy="channel", symmetric=True)
    scale, zero = calculate_qparams(weight.amin(1, True), weight.amax(1, True), args)
    code = quantize(weight, scale, zero, args, dtype=E4M3 if kind == "float" else torch.int8)
    exact = (code.float() + 0.0) * scale.float()
    assert torch.equal(dequantize(code, scale.float(), None, args), exact)
    return {"weight": code, "weight_scale": scale}, exact


def fp8(weight, area, scale_dtype=torch.float32, name="weight_scale"):
    scale = area_max(weight, area) / 448
    if scale_dtype == E8M0:
        scale = torch.exp2(scale.log2().ceil())
    scale = scale.to(scale_dtype)
    full = spread(scale.float(), area, weight.shape)
    code = to_e4m3(weight / full).to(E4M3)
    return {"weight": code, name: scale}, code.float() * full


def int8(weight, area, name="weight_scale"):
    scale = area_max(weight, area) / 127
    full = spread(scale, area, weight.shape)
    code = (weight / full).round().clamp(-127, 127)
    return {"weight": code.to(torch.int8), name: scale}, (code + 0.0) * full


def qoq(weight, grouped, own_order=False):
    """Progressive: int8 by output, then 4 bits by 128 inputs; packed by deepcompressor.

    own_order: the second level as deepcompressor orders it, not as QServe does."""
    rows, columns = weight.shape
    if not grouped:
        low, high = weight.amin(1).clamp(max=0), weight.amax(1).clamp(min=0)
        scale = ((high - low) / 15).half().float()
        zero = (-low / scale).round()
        code = ((weight / scale[:, None]).round() + zero[:, None]).clamp(0, 15)
        fake = (code - zero[:, None]) * scale[:, None]
        made = convert_to_qserve_w4x8y16_linear_weight(
            fake.half(), scale, zero.clone(), zero_pre_scaled=True
        )
        exact = code * made[1].float()[:, None] - made[2].float()[:, None]
        return {"qweight": made[0], "s1_scales": made[1], "s1_szeros": made[2]}, exact
    first = (weight.abs().amax(1) / 119).half().float()
    byte = (weight / first[:, None]).round().clamp(-119, 119).unflatten(1, (-1, 128))
    low, high = byte.amin(2).clamp(max=0), byte.amax(2).clamp(min=0)
    second = ((high - low) / 15).round().clamp(min=1)
    zero = (-low / second).round()
    code = ((byte / second[..., None]).round() + zero[..., None]).clamp(0, 15)
    value = ((code - zero[..., None]) * second[..., None]).clamp(-128, 127).flatten(1)
    exact = value * first[:, None]
    # deepcompressor takes weights of f16; those that f16 cannot hold still round to the same int8.
    made = convert_to_qserve_w4x8y16_linear_weight(
        exact.half(), first, zero.clone(), second.clone(), zero_pre_scaled=True
    )
    if own_order:
        return {"qweight": made[0], "s1_scales": made[1], "s2_scales": made[3],
                "s2_zeros": made[2]}, exact  # fmt: skip
    # Its order of the second level is not what QServe's converter writes and its kernels read: for
    # outputs 0, 8, 16, 24, 1, 9, ... among 32.
    stored = {"qweight": made[0], "s1_scales": made[1], "s2_scales": qserve_order(second),
              "s2_zeros": qserve_order(-zero * second)}  # fmt: skip
    return stored, exact


def qserve_order(values):
    """(N, groups) -> (groups, N) int8; what does not fit wraps."""
    tiles = values.T.int().to(torch.int8).unflatten(1, (-1, 4, 8))
    return tiles.transpose(-2, -1).flatten(1)


MXFP8_IN = mx(32, to_e4m3, 448)
STATIC = torch.tensor(0.03)

# (scheme, case): (model configuration changes, weight -> tensors and values, activations,
#                  quantization_config, options)
CASES = {
    ("petit_nvfp4", "nested"): (
        {}, nvfp4, None,
        {"quant_method": "petit_nvfp4", "quantization": {"quant_algo": "NVFP4", "group_size": 16,
         "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", f"{O_PROJ}*"]}},
        {"skip": [O_PROJ]},
    ),
    ("mxfp4", "blocks"): (
        {}, lambda w: mxfp4(w, ("weight_blocks", "weight_scales"), True), None,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "lm_head"]},
        {"skip": ["q_proj", "k_proj", "v_proj", "o_proj"], "zeros": True},
    ),
    ("mxfp4", "packed"): (
        {}, lambda w: mxfp4(w, ("weight", "weight_scale"), False), None,
        {"quant_method": "mxfp4"}, {},
    ),
    ("mxfp8", "inverse"): (
        {}, lambda w: mxfp8(w, "weight_scale_inv", torch.uint8), MXFP8_IN,
        {"quant_method": "mxfp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
         "weight_block_size": [1, 32], "ignored_layers": [O_PROJ]},
        {"skip": [O_PROJ]},
    ),
    ("mxfp8", "e8m0"): (
        {}, lambda w: mxfp8(w, "weight_scale", E8M0), MXFP8_IN, {"quant_method": "mxfp8"}, {},
    ),
    ("fbgemm_fp8", "bound"): (
        {}, row_fp8, token_e4m3(bound=2.5),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 2.5,
         "modules_to_not_convert": ["lm_head", O_PROJ]},
        {"skip": [O_PROJ]},
    ),
    ("w8a8_fp8", "dynamic"): (
        {}, lambda w: per_output(w, "float"), token_e4m3(), {"quant_method": "w8a8_fp8"}, {},
    ),
    ("w8a8_fp8", "static_ue8m0"): (
        {}, lambda w: fp8(w, (1, w.shape[1]), E8M0), static_e4m3(STATIC),
        {"quant_method": "w8a8_fp8"}, {"input_scale": STATIC},
    ),
    ("w8a8_int8", "dynamic"): (
        {}, lambda w: per_output(w, "int"), token_s8,
        {"quant_method": "w8a8_int8", "is_dynamic": True, "ignore": ["lm_head"]}, {},
    ),
    ("blockwise_int8", "ragged"): (
        RAGGED, lambda w: int8(w, (32, 32), "weight_scale_inv"), group_s8(32),
        {"quant_method": "blockwise_int8", "activation_scheme": "dynamic",
         "weight_block_size": [32, 32]}, {},
    ),
    ("qoq", "channel"): (
        {}, lambda w: qoq(w, False), token_s8,
        {"quant_method": "qoq", "wbits": 4, "group_size": -1}, {"dtype": torch.float16},
    ),
    ("qoq", "groups"): (
        WIDE, lambda w: qoq(w, True), token_s8,
        {"quant_method": "qoq", "wbits": 4, "group_size": 128}, {"dtype": torch.float16},
    ),
    # What deepcompressor saves: its name for the file, and no quantization_config.
    ("qoq", "deepcompressor"): (
        NARROW, lambda w: qoq(w, True, own_order=True), token_s8, None,
        {"dtype": torch.float16, "skip": ["o_proj", "down_proj"], "file": "quant_model.pt"},
    ),
}  # fmt: skip


def make(scheme, case):
    changes, quantize, activation, quantization, options = CASES[scheme, case]
    dtype = options.get("dtype", BF16)
    config = slim_config(**changes, dtype=dtype)
    model = tiny_model(config, seed=list(CASES).index((scheme, case)) + 601)
    if options.get("zeros"):
        model.model.layers[0].mlp.up_proj.weight.data[7, :32] = 0
    tensors = {k: v.to(dtype) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    weights = {}
    for name in linears(model):
        if name.endswith(tuple(options.get("skip", ["-"]))):
            continue
        stored, weights[name] = quantize(tensors.pop(f"{name}.weight").float())
        tensors.update({f"{name}.{k}": v for k, v in stored.items()})
        if "input_scale" in options:
            tensors[f"{name}.input_scale"] = options["input_scale"].clone()
    folder = save_folder(GOLDEN / scheme / case, config, tensors, quantization)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "file" in options:
        (folder / "model.safetensors").unlink()
        torch.save({k: v.clone() for k, v in tensors.items()}, folder / options["file"])
    run = {} if activation is None else {name: activation for name in weights}
    tools = {"qoq": ["deepcompressor-toolkit"], "petit_nvfp4": ["nvidia-modelopt"],
             "mxfp8": ["torchao"], "fbgemm_fp8": ["fbgemm-gpu-genai"],
             "w8a8_int8": ["compressed-tensors"]}.get(scheme, [])  # fmt: skip
    if (scheme, case) == ("w8a8_fp8", "dynamic"):
        tools = ["compressed-tensors"]
    notes = f"codes and scales by {tools[0]}" if tools else "by formula, no tool run"
    packages = ["torch", "transformers", *tools]
    write_expected(folder, config, tensors, weights, run, __file__, packages, notes)


def make_online():
    """An unquantized folder, and what --quantization fp8 makes of it."""
    folder = GOLDEN / "unquantized" / "online_fp8"
    config = slim_config()
    model = tiny_model(config, seed=650)
    tensors = {k: v.to(BF16) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_folder(folder, config, tensors, None)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_expected(folder, config, tensors, {}, {}, __file__, ["torch", "transformers"],
                   "expected/online_fp8*: made while loading, one scale per output")  # fmt: skip
    weights = {}
    for name in linears(model):
        weight = tensors[f"{name}.weight"].float()
        scale = (weight.abs().amax(1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
        weights[name] = to_e4m3(weight / scale) * scale
    state = {k: v for k, v in tensors.items()}
    state.update({f"{k}.weight": v for k, v in weights.items()})
    quantized = float_model(config, state)
    for name in weights:
        quantized.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs: (token_e4m3()(inputs[0]),)
        )
    tokens, answer, _ = stable_logits(quantized, slim_tokens)
    expected = folder / "expected"
    (expected / "weights_crc32.json").unlink()
    (expected / "online_fp8_crc32.json").write_text(
        json.dumps({k: crc32(v.numpy()) for k, v in weights.items()}, indent=1) + "\n"
    )
    plain = logits(float_model(config, tensors), tokens)
    write_logits(expected, **{"tokens": tokens, "logits": plain, "online_fp8.tokens": tokens,
                              "online_fp8.logits": answer})  # fmt: skip


if __name__ == "__main__":
    for scheme, case in CASES:
        if not {scheme, f"{scheme}/{case}"}.isdisjoint(sys.argv[1:] or [scheme]):
            make(scheme, case)
    if not sys.argv[1:] or "online" in sys.argv[1:]:
        make_online()
