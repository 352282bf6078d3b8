"""Writes tests/golden/awq/: tiny Llamas whose linears autoawq 0.2.9's WQLinear_GEMM packed.

autoawq no longer imports whole beside a current transformers, so its two modules are imported
without the package's own __init__. Scales and zero points are round-to-nearest by the tool's
formula (pseudo_quantize_tensor), without its search for smoothing scales, which the format does not
show. Expected weights are the tool's dequantize_gemm with scales widened to float32. Group -1,
where both functions of the tool fail, is packed and read as one group of all inputs.

gemv is packed by WQLinear_GEMV, which the tool reads on a card alone: the expected weights are those
that it was given, on their grid.
"""

import importlib.util
import pathlib
import sys
import types

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from common import GOLDEN, write_expected_weights, write_json, write_made_by
from slim import linears, save_folder, slim_config, write_expected
from tiny import as_transformers_4, float_model, fresh, logits, save_tokenizer, tiny_config
from tiny import tiny_model, tiny_tokens, write_logits


def import_autoawq():
    root = pathlib.Path(importlib.util.find_spec("awq").submodule_search_locations[0])
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV
    from awq.utils.packing_utils import dequantize_gemm

    return WQLinear_GEMM, WQLinear_GEMV, dequantize_gemm


WQLinear_GEMM, WQLinear_GEMV, dequantize_gemm = import_autoawq()

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
RAGGED = dict(ONE, hidden_size=192, intermediate_size=192, num_attention_heads=6)
K_PROJ = "model.layers.0.self_attn.k_proj"
SKIPPED = ["self_attn.o_proj", "layers.1.mlp"]

# name: (configuration changes, group size, options)
CASES = {
    "g32": ({}, 32, {"full": [K_PROJ, "model.layers.1.self_attn.q_proj"]}),
    "g64_biases": (dict(SMALL, attention_bias=True, mlp_bias=True), 64, {}),
    "g128_untied": (dict(ONE, tie_word_embeddings=False), 128, {}),
    "channel": (SMALL, -1, {}),
    "g64_ragged": (RAGGED, 64, {}),
    "not_converted": (dict(SMALL, num_hidden_layers=2), 64, {"skip": SKIPPED}),
    "g64_no_zero_point": (SMALL, 64, {"zero_point": False}),
    "sharded": (SMALL, 32, {"shards": 3}),
    "old_quant_config": (SMALL, 64, {"old": True}),
}


def scales_and_zeros(weight, group_size, zero_point):
    """Returns the weight on its grid (N, K), scales and zero points (N, groups), all float32."""
    rows, columns = weight.shape
    groups = weight.reshape(-1, columns if group_size == -1 else group_size)
    if zero_point:
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scales = ((high - low).clamp(min=1e-5) / 15).half().float()
        zeros = (-torch.round(low / scales)).clamp(0, 15)
    else:
        scales = (groups.abs().amax(1, keepdim=True).clamp(min=1e-5) / 7).half().float()
        zeros = torch.full_like(scales, 8)
    codes = (torch.round(groups / scales) + zeros).clamp(0, 15)
    on_grid = ((codes - zeros) * scales).reshape(rows, columns)
    return on_grid, scales.reshape(rows, -1), zeros.reshape(rows, -1)


def pack(linear, group_size, zero_point=True):
    """One nn.Linear -> its WQLinear_GEMM, as AwqQuantizer does it."""
    weight, scales, zeros = scales_and_zeros(linear.weight.data.float(), group_size, zero_point)
    linear.weight.data = weight
    size = linear.in_features if group_size == -1 else group_size
    packed = WQLinear_GEMM.from_linear(
        linear,
        w_bit=4,
        group_size=size,
        scales=scales.t().contiguous(),
        zeros=zeros.t().contiguous(),
    )
    return packed, weight


def dequantize(module):
    """float32 (N, K)"""
    scales = module.scales.float()
    return (
        dequantize_gemm(module.qweight, module.qzeros, scales, 4, module.group_size)
        .t()
        .contiguous()
    )


def pack_model(model, group_size, zero_point=True, skip=()):
    """Replaces the linears of the decoder layers in place; returns {module: float32 weight}."""
    weights = {}
    for name, module in list(model.named_modules()):
        if (
            not isinstance(module, torch.nn.Linear)
            or name == "lm_head"
            or any(s in name for s in skip)
        ):
            continue
        packed, on_grid = pack(module, group_size, zero_point)
        weights[name] = dequantize(packed)
        if not torch.equal(weights[name], on_grid):
            raise ValueError(f"{name}: the packed weight is not the quantized one")
        model.set_submodule(name, packed)
    return weights


def save_shards(tensors, folder, count):
    names = sorted(tensors)
    where = {}
    for i in range(count):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors"
        part = {
            k: tensors[k].contiguous()
            for k in names[i * len(names) // count : (i + 1) * len(names) // count]
        }
        save_file(part, folder / file, {"format": "pt"})
        where.update({k: file for k in part})
    if count > 1:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        write_json(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": size}, "weight_map": where},
        )


def write_config(folder, config, group_size, zero_point, skip, old):
    if old:
        config.save_pretrained(folder)
        keys = {"zero_point": zero_point, "q_group_size": group_size, "w_bit": 4, "version": "GEMM"}
        write_json(folder / "quant_config.json", keys)
    else:
        config.quantization_config = {
            "quant_method": "awq", "zero_point": zero_point, "group_size": group_size, "bits": 4,
            "version": "gemm", "modules_to_not_convert": list(skip) or None,
        }  # fmt: skip
        config.save_pretrained(folder)
        del config.quantization_config
    as_transformers_4(folder)


def make(name):
    changes, group_size, options = CASES[name]
    folder = fresh(GOLDEN / "awq" / name)
    zero_point, skip = options.get("zero_point", True), options.get("skip", ())
    config = tiny_config(dtype=torch.float16, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 201)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):  # rows of one sign have zero points 0 and 15
            module.weight.data[::11].abs_()
            module.weight.data[1::13] = -module.weight.data[1::13].abs()
    weights = pack_model(model, group_size, zero_point, skip)
    tensors = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_shards(tensors, folder, options.get("shards", 1))
    write_config(folder, config, group_size, zero_point, skip, options.get("old", False))
    save_tokenizer(folder)

    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(
        expected, {k: v.numpy() for k, v in weights.items()}, options.get("full", [K_PROJ])
    )
    state = {k: v for k, v in tensors.items() if not k.endswith((".qweight", ".qzeros", ".scales"))}
    state.update({f"{k}.weight": v for k, v in weights.items()})
    tokens = tiny_tokens()
    answer = logits(float_model(AutoConfig.from_pretrained(folder), state), tokens)
    write_logits(expected, tokens=tokens, logits=answer)
    notes = "Packed by autoawq's WQLinear_GEMM; config.json with the keys of transformers 4."
    if group_size == -1:
        notes += (
            " Group -1 packed and read as one group of all inputs: the tool itself fails on -1."
        )
    if not zero_point:
        notes += " zero_point false: every stored zero is 8."
    write_made_by(expected / "made_by.json", __file__, ["autoawq", "torch", "transformers"], notes)
    print(name, len(weights), "modules, logits", float(answer.std()))


def make_gemv():
    """Groups of 32: 1, 2 and 3 of them, in rows of scales padded to 32."""
    config = slim_config(
        dtype=torch.float16, head_dim=16, num_attention_heads=2, num_key_value_heads=1,
        hidden_size=64, intermediate_size=96, vocab_size=32,
    )  # fmt: skip
    model = tiny_model(config, seed=231)
    tensors = {k: v.half() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    weights = {}
    for name in linears(model):
        del tensors[f"{name}.weight"]
        module = model.get_submodule(name)
        module.weight.data[::11].abs_()  # rows of one sign have zero points 0 and 15
        module.weight.data[1::13] = -module.weight.data[1::13].abs()
        on_grid, scales, zeros = scales_and_zeros(module.weight.data.float(), 32, True)
        module.weight.data = on_grid
        packed = WQLinear_GEMV.from_linear(module, 4, 32, scales=scales, zeros=zeros)
        tensors.update({f"{name}.{k}": v for k, v in packed.state_dict().items()})
        weights[name] = on_grid
    quantization = {"quant_method": "awq", "zero_point": True, "group_size": 32, "bits": 4,
                    "version": "gemv", "modules_to_not_convert": None}  # fmt: skip
    folder = save_folder(GOLDEN / "awq" / "gemv", config, tensors, quantization)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_expected(folder, config, tensors, weights, {}, __file__,
                   ["autoawq", "torch", "transformers"], "Packed by autoawq's WQLinear_GEMV.")  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or [*CASES, "gemv"]:
        make_gemv() if case == "gemv" else make(case)
