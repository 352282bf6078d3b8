"""Writes tests/golden/modelopt/: tiny Llamas quantized and exported by NVIDIA ModelOpt on a CPU.

`mtq.quantize` calibrates with random ids, `export_hf_checkpoint` writes the folder: config.json with
the flat spelling of the settings, hf_quant_config.json with the nested one. Some cases keep only one.
Expected weights are the exact float32 product of code and scales; where ModelOpt has a function that
dequantizes (or packs) the same tensors, it must agree. Activations are held by the formulas of
ModelOpt's quantizers, of which those of groups run on a GPU alone; a dynamic scale "per tensor"
(W4A8_MXFP4_FP8) is taken per token, for it would depend on the other tokens. `w4afp8` is laid out by hand: ModelOpt's
label, SGLang's layout.
"""

import copy
import json
import sys

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.quant_utils import pack_int4_in_uint8
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file

from common import GOLDEN
from kv import attention_reads, stored_cache
from slim import BF16, E2M1, E4M3, after_factor, group_e4m3, linears, mx, nvfp4, save_folder
from slim import slim_config, slim_tokens, static_e4m3, static_s8, to_e2m1, to_e4m3, token_e4m3
from slim import write_expected
from tiny import fresh, tiny_model

WIDE = dict(hidden_size=128, intermediate_size=128)  # int4 groups of 128 do not get shorter
BLOCKS = dict(intermediate_size=256)

# name: (ModelOpt's configuration, model configuration changes, options)
CASES = {
    "fp8": ("FP8_DEFAULT_CFG", {}, {"kv": True}),
    "fp8_channel": ("FP8_PER_CHANNEL_PER_TOKEN_CFG", {}, {"keep": "flat"}),
    "fp8_blocks": ("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", BLOCKS, {"keep": "nested"}),
    "nvfp4": ("NVFP4_DEFAULT_CFG", {}, {"zeros": True}),
    "nvfp4_w4a16": ("W4A16_NVFP4_CFG", {}, {"keep": "flat"}),
    "nvfp4_w4a8": ("W4A8_NVFP4_FP8_CFG", {}, {"keep": "flat"}),
    "int4_awq": ("INT4_AWQ_CFG", WIDE, {}),
    "w4a8_awq": ("W4A8_AWQ_BETA_CFG", WIDE, {"keep": "nested"}),
    "mxfp8": ("MXFP8_DEFAULT_CFG", {}, {"keep": "nested"}),
    "mxfp4": ("MXFP4_DEFAULT_CFG", {}, {}),
    "mxfp4_w4a8": ("W4A8_MXFP4_FP8_CFG", {}, {}),
    "int8_smoothquant": ("INT8_SMOOTHQUANT_CFG", {}, {}),
    "int8_w8a16": ("INT8_WEIGHT_ONLY_CFG", {}, {"keep": "flat"}),
    "mixed": (None, dict(intermediate_size=128), {}),
    "w4afp8": (None, BLOCKS, {}),
}


def nibbles(packed):
    """(N, M) u8 -> (N, 2 M), the low half first."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def e2m1(code):
    return E2M1[(code & 7).long()] * torch.where(code >= 8, -1.0, 1.0)


def by_group(scale, columns):
    return scale.repeat_interleave(columns // scale.shape[1], 1)


def e8m0(byte):
    return torch.exp2(byte.double() - 127).float()


def dequantize(weight, scale, second):
    """The exact float32 weight of one linear, and what ModelOpt says of the same tensors or None."""
    if weight.dtype == torch.uint8 and scale.dtype == E4M3:
        values = e2m1(nibbles(weight))
        full = values * by_group(scale.float() * second, values.shape[1])
        tool = NVFP4QTensor(values.shape, torch.float32, weight).dequantize(
            scale=scale, double_scale=second, block_sizes={-1: values.shape[1] // scale.shape[1]}
        )
        return full, tool
    if weight.dtype == torch.uint8 and scale.dtype == torch.uint8:
        values = e2m1(nibbles(weight))
        tool = MXFP4QTensor(values.shape, torch.float32, weight).dequantize(
            scale=scale, block_sizes={-1: 32}
        )
        return values * by_group(e8m0(scale), values.shape[1]), tool
    if weight.dtype == torch.uint8:
        code = nibbles(weight.T).T.contiguous().view(torch.int8)  # two outputs a byte
        values = torch.where(code >= 8, code - 16, code).float()
        group = values.shape[1] // scale.shape[1]
        full = values * by_group(scale, values.shape[1])
        assert torch.equal(pack_int4_in_uint8(full, scale, group), weight)
        return full, None
    if scale.dtype == torch.uint8:
        tool = MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(
            scale=scale, block_sizes={-1: 32}
        )
        return weight.float() * by_group(e8m0(scale), weight.shape[1]), tool
    scale = scale.float()
    if scale.ndim == 1:
        scale = scale[:, None]
    elif scale.ndim == 4:
        scale = scale[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)
        scale = scale[: weight.shape[0], : weight.shape[1]]
    return weight.float() * scale, None


def activation(algo, tensors, name):
    """The function that this linear's input goes through."""
    factor = tensors.get(f"{name}.pre_quant_scale")
    scale = tensors.get(f"{name}.input_scale")
    run = {
        "FP8": lambda: static_e4m3(scale),
        "FP8_PER_CHANNEL_PER_TOKEN": lambda: token_e4m3(),
        "NVFP4": lambda: nvfp4(scale),
        "MXFP8": lambda: mx(32, to_e4m3, 448),
        "MXFP4": lambda: mx(32, to_e2m1, 6),
        "W4A8_NVFP4_FP8": lambda: static_e4m3(scale),
        "W4A8_AWQ": lambda: static_e4m3(scale),
        "W4A8_MXFP4_FP8": lambda: token_e4m3(),
        "W8A8_SQ_PER_CHANNEL": lambda: static_s8(scale),
    }.get(algo, lambda: lambda x: x)()
    return run if factor is None else after_factor(factor, run)


def quantize(model, configuration):
    calibrate = lambda m: [m(slim_tokens(32, s)[None]) for s in range(2)]  # noqa: E731
    return mtq.quantize(model, configuration, calibrate)


def mixed_configuration():
    """FP8 attention, NVFP4 gate and up, int4 down, o_proj left alone."""
    merged = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    rules = list(merged["quant_cfg"])
    fp4 = [r for r in mtq.W4A16_NVFP4_CFG["quant_cfg"] if r["quantizer_name"] == "*weight_quantizer"]
    int4 = [r for r in mtq.INT4_BLOCKWISE_WEIGHT_ONLY_CFG["quant_cfg"]
            if r["quantizer_name"] == "*weight_quantizer"]  # fmt: skip
    for part, rule in (("gate_proj", fp4), ("up_proj", fp4), ("down_proj", int4)):
        rules.append({**copy.deepcopy(rule[0]), "quantizer_name": f"*{part}*weight_quantizer"})
        rules.append({"quantizer_name": f"*{part}*input_quantizer", "enable": False})
    rules.append({"quantizer_name": "*o_proj*", "enable": False})
    merged["quant_cfg"] = rules
    return merged


def make(name):
    tool_config, changes, options = CASES[name]
    folder = GOLDEN / "modelopt" / name
    config = slim_config(**changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 501)
    if options.get("zeros"):  # a group of zeros, and one that rounds its scale to zero
        model.model.layers[0].mlp.up_proj.weight.data[3, 16:32] = 0
        model.model.layers[0].mlp.up_proj.weight.data[5, 16:32] = 1e-7
    model = model.to(BF16)
    configuration = mixed_configuration() if name == "mixed" else getattr(mtq, tool_config)
    if options.get("kv"):
        configuration = mtq.update_quant_cfg_with_kv_cache_quant(
            copy.deepcopy(configuration), mtq.FP8_KV_CFG["quant_cfg"]
        )
    model = quantize(model, configuration)
    export_hf_checkpoint(model, dtype=BF16, export_dir=str(fresh(folder)))
    nested = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    flat = json.loads((folder / "config.json").read_text())
    if options.get("keep") == "flat":
        (folder / "hf_quant_config.json").unlink()
    if options.get("keep") == "nested":
        del flat["quantization_config"]
        (folder / "config.json").write_text(json.dumps(flat, indent=2) + "\n")
    for extra in ("generation_config.json",):
        (folder / extra).unlink(missing_ok=True)

    tensors = load_file(folder / "model.safetensors")
    weights, activations = {}, {}
    for module in linears(model):
        scale = tensors.get(f"{module}.weight_scale")
        if scale is None:
            continue
        full, tool = dequantize(
            tensors[f"{module}.weight"], scale, tensors.get(f"{module}.weight_scale_2")
        )
        assert tool is None or torch.equal(full, tool), module
        weights[module] = full
        entry = nested.get("quantized_layers", {}).get(module, nested)
        activations[module] = activation(entry["quant_algo"].upper(), tensors, module)
    notes = f"{tool_config or 'a mixture'}; activations: {nested['quant_algo']}"
    packages = ["nvidia-modelopt", "torch", "transformers"]
    if options.get("kv"):
        notes += "; KV cache e4m3"
    with attention_reads(stored_cache(tensors)):
        write_expected(folder, config, tensors, weights, activations, __file__, packages, notes)


def make_w4afp8():
    """DeepSeek's FP8 blocks, but an int4 down_proj with a static scale; the label names no layers."""
    folder = GOLDEN / "modelopt" / "w4afp8"
    config = slim_config(**BLOCKS)
    model = tiny_model(config, seed=560)
    tensors = {k: v.to(BF16) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    weights, activations = {}, {}
    for module in linears(model):
        weight = tensors.pop(f"{module}.weight").float()
        rows, columns = weight.shape
        if module.endswith("down_proj"):
            scale = weight.unflatten(1, (-1, 128)).abs().amax(-1) / 7
            full = by_group(scale.to(BF16).float(), columns)
            code = (weight / full).round().clamp(-8, 7) + 0.0  # integers have no -0
            bits = code.to(torch.int8).view(torch.uint8) & 15
            tensors[f"{module}.weight"] = (bits[:, ::2] | bits[:, 1::2] << 4).view(torch.int8)
            tensors[f"{module}.weight_scale_inv"] = scale.to(BF16)
            tensors[f"{module}.input_scale"] = torch.tensor(0.0302734375)
            activations[module] = static_e4m3(tensors[f"{module}.input_scale"])
            weights[module] = code * full
        else:
            padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
            blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
            scale = blocks.abs().amax((1, 3)) / 448
            full = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
            tensors[f"{module}.weight"] = (weight / full).to(E4M3)
            tensors[f"{module}.weight_scale_inv"] = scale
            weights[module] = tensors[f"{module}.weight"].float() * full
            activations[module] = group_e4m3(128)
    save_folder(folder, config, tensors, None)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}}) + "\n"
    )
    notes = "laid out by hand after SGLang's W4AFP8 (no tool run)"
    write_expected(folder, config, tensors, weights, activations, __file__, ["torch"], notes)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make_w4afp8() if case == "w4afp8" else make(case)
