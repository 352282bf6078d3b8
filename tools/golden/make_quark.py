"""Writes tests/golden/quark/: tiny Llamas quantized and exported by AMD Quark on a CPU.

Expected weights are (code - zero) times scale, decoded here with Quark's own unpacking functions;
scales are widened to float32. Activations are quantized in the logits as the runtimes do it, by the
configuration: static per tensor, per token, or in groups of 32 with Quark's "even" powers of two.
"""

import json
import os
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config import config as quark
from quark.torch.quantization.config.type import Dtype
from quark.torch.utils.pack import create_pack_method
from safetensors import safe_open

from common import GOLDEN
from kv import attention_reads, stored_cache
from quantized import K_PROJ, write_expected
from tiny import as_transformers_4, fresh, save_tokenizer, tiny_config, tiny_model

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
TINY = dict(
    ONE, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1
)  # fmt: skip
FLOAT = dict(scale_type="float", round_method="half_even")
FP8 = quark.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
FP8_ROW = quark.FP8E4M3PerChannelSpec(is_dynamic=False, ch_axis=0)
FP8_TOKEN = quark.FP8E4M3PerChannelSpec(is_dynamic=True, ch_axis=1)
INT8_ROW = quark.Int8PerChannelSpec(symmetric=True, ch_axis=0, is_dynamic=False, **FLOAT)
INT8_TENSOR = quark.Int8PerTensorSpec(
    observer_method="min_max", symmetric=True, is_dynamic=False, **FLOAT
)
INT8_TOKEN = quark.Int8PerChannelSpec(symmetric=True, ch_axis=1, is_dynamic=True, **FLOAT)
GROUP = dict(ch_axis=-1, is_dynamic=False, group_size=32, **FLOAT)
MX = quark.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False)
MX_INPUT = quark.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True)
E2M3, E3M2 = (
    [kind(ch_axis=-1, is_dynamic=dynamic) for dynamic in (False, True)]
    for kind in (quark.OCP_MXFP6E2M3Spec, quark.OCP_MXFP6E3M2Spec)
)
E4M3_INPUT = quark.OCP_MXFP8E4M3Spec(ch_axis=-1, is_dynamic=True)


class Mx:
    """The dtype "mx", which no class of the tool's own makes."""

    def __init__(self, element, is_dynamic=False):
        self.spec = quark.QTensorConfig(
            dtype=Dtype.mx, mx_element_dtype=Dtype.from_str(element), is_dynamic=is_dynamic, ch_axis=-1,
            group_size=32, scale_calculation_mode="even",
        )  # fmt: skip

    def to_quantization_spec(self):
        return self.spec


# dtype: bits of mantissa, the exponents of the smallest normal number and of the largest, the largest
FLOATS = {"fp6_e2m3": (3, 0, 2, 7.5), "fp6_e3m2": (2, -2, 4, 28), "fp8_e4m3": (3, -6, 8, 448)}

# name: (configuration changes, weights, inputs, options)
CASES = {
    "fp8_static_kv": (SMALL, FP8, FP8, {"kv": True}),
    "fp8_token": (dict(SMALL, attention_bias=True), FP8_ROW, FP8_TOKEN, {"v4": True}),
    "int8_static": (SMALL, INT8_ROW, INT8_TENSOR, {}),
    "int8_token": (SMALL, INT8_ROW, INT8_TOKEN, {}),
    "int4_g32": (SMALL, quark.Int4PerGroupSpec(symmetric=True, **GROUP), None, {}),
    "uint4_g32": (SMALL, quark.Uint4PerGroupSpec(symmetric=False, **GROUP), None, {"v4": True}),
    "int4_channel": (
        SMALL,
        quark.Int4PerChannelSpec(symmetric=True, ch_axis=0, is_dynamic=False, **FLOAT),
        None,
        {},
    ),
    "mxfp4": (SMALL, MX, MX_INPUT, {}),
    "mxfp4_weights": (SMALL, MX, None, {}),
    "mixed": (dict(SMALL, num_hidden_layers=2), MX, MX_INPUT, {"fp8_attention": True}),
    "mxfp6": (
        TINY, *E2M3, {"named": {"*self_attn*": E3M2, "*down_proj": (E3M2[0], E4M3_INPUT)}, "full": []},
    ),
    "mx": (
        TINY, Mx("fp4"), Mx("fp4", True),
        {"named": {"*self_attn*": (Mx("fp6_e2m3"), Mx("fp6_e3m2", True)),
                   "*down_proj": (Mx("fp6_e3m2"), Mx("fp6_e2m3", True))}, "full": []},
    ),
}


def quantize(folder, config, weight, inputs, options, seed):
    model = tiny_model(config, seed).bfloat16()

    def layer(weight, inputs, output=None):
        return quark.QLayerConfig(
            weight=weight.to_quantization_spec(),
            input_tensors=inputs.to_quantization_spec() if inputs else None,
            output_tensors=output.to_quantization_spec() if output else None,
        )

    named, cache = {}, {}
    if options.get("fp8_attention"):
        named = {"*self_attn*": layer(FP8_ROW, FP8_TOKEN), "*layers.1.mlp.up_proj": layer(MX, None)}
    for pattern, specs in options.get("named", {}).items():
        named[pattern] = layer(*specs)
    if options.get("kv"):
        cache = {"*k_proj": layer(weight, inputs, FP8), "*v_proj": layer(weight, inputs, FP8)}
        named = cache
    plan = quark.QConfig(
        global_quant_config=layer(weight, inputs), layer_quant_config=named,
        kv_cache_quant_config=cache, exclude=["lm_head"],
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    data = [torch.randint(3, 288, (32,), generator=generator) for _ in range(8)]
    tool = ModelQuantizer(plan)
    model = tool.quantize_model(model, torch.utils.data.DataLoader(data, batch_size=4))
    with torch.no_grad():
        export_safetensors(tool.freeze(model), str(folder))
    save_tokenizer(folder)


def exact_weight(tensors, name, spec):
    code, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    if spec["dtype"] == "mx":  # put together again as the tool packs them: a scale before its codes
        blocks = torch.cat([scale.reshape(-1, 1), code.reshape(scale.numel(), -1)], 1)
        method = create_pack_method(None, "mx", spec["mx_element_dtype"])
        values = method.unpack(blocks, True).float().reshape(-1, 33)
        return (values[:, :1] * values[:, 1:]).reshape(code.shape[0], -1)
    if scale.dtype == torch.uint8:
        values = create_pack_method(spec["qscheme"], spec["dtype"]).unpack(code, True).float()
        return values * torch.pow(2.0, scale.float() - 127).repeat_interleave(32, 1)
    if code.dtype == torch.float8_e4m3fn:
        scale = scale.float()
        return code.float() * (scale[:, None] if scale.ndim else scale)
    dtype, qscheme = spec["dtype"], spec["qscheme"]
    method = create_pack_method(qscheme, dtype)
    values = method.unpack(code, True).float()
    zero = tensors[f"{name}.weight_zero_point"]
    zero = method.unpack(zero, True) if zero.dtype == torch.int32 else zero
    scale, zero = scale.float(), zero.float()
    if qscheme == "per_group":
        group = values.shape[1] // scale.shape[0]
        zero = zero if zero.shape[0] == values.shape[0] else zero.t()
        return (values - zero.repeat_interleave(group, 1)) * scale.t().repeat_interleave(group, 1)
    return (values - zero[:, None]) * scale[:, None]


def input_function(tensors, name, spec):
    if spec is None:
        return None
    if spec["dtype"] == "mx":
        spec = dict(spec, dtype=spec["mx_element_dtype"], qscheme="per_group")

    def to_float8(x):
        return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)

    def fp8(x):
        if not spec["is_dynamic"]:
            scale = tensors[f"{name}.input_scale"].to(x.dtype)
        else:
            scale = (x.abs().amax(-1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
        return to_float8(x * (1 / scale)) * scale

    def int8(x):
        if not spec["is_dynamic"]:
            scale = tensors[f"{name}.input_scale"].to(x.dtype)
        else:
            scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127) * scale

    def mxfp4(x):
        groups = x.unflatten(-1, (-1, 32))
        most = groups.abs().amax(-1, keepdim=True)
        mantissa, exponent = torch.frexp(most)  # in [0.5, 1)
        exponent = exponent - 1 + (mantissa >= 0.875).to(exponent.dtype) - 2
        scale = torch.ldexp(torch.ones_like(most), exponent)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=x.dtype)
        size = (groups / scale).abs().clamp(max=6)
        low = (torch.searchsorted(grid, size.contiguous(), right=True) - 1).clamp(max=6)
        middle = (grid[low] + grid[low + 1]) / 2
        up = (size > middle) | ((size == middle) & (low % 2 == 1))
        return (grid[low + up.long()] * groups.sign() * scale).flatten(-2)

    def mx(x):
        """Quark's "even": absmax counts as the next power of two from the last half step on."""
        mantissa, least, most, largest = FLOATS[spec["dtype"]]
        groups = x.unflatten(-1, (-1, 32))
        part, exponent = torch.frexp(groups.abs().amax(-1, keepdim=True))  # in [0.5, 1)
        up = part * 2 >= 2 - 2.0 ** -(mantissa + 1)
        scale = torch.exp2((exponent - 1 + up.to(exponent.dtype) - most).clamp(min=-127).to(x.dtype))
        values = groups / scale
        step = torch.exp2((torch.frexp(values)[1] - 1).clamp(min=least).to(x.dtype) - mantissa)
        return ((values / step).round() * step).clamp(-largest, largest).mul(scale).flatten(-2)

    if spec["qscheme"] == "per_group" and spec["dtype"] != "fp4":
        return mx
    return {"fp8_e4m3": fp8, "int8": int8, "fp4": mxfp4}[spec["dtype"]]


def make(name):
    changes, weight, inputs, options = CASES[name]
    folder = fresh(GOLDEN / "quark" / name)
    config = tiny_config(dtype=torch.bfloat16, **changes)
    quantize(folder, config, weight, inputs, options, list(CASES).index(name) + 801)
    if options.get("v4"):
        as_transformers_4(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    weights, functions = {}, {}
    for key in tensors:
        if not key.endswith(".weight_scale"):
            continue
        module = key.removesuffix(".weight_scale")
        own = settings["global_quant_config"]
        for pattern, other in settings["layer_quant_config"].items():
            if pattern.strip("*") in module:
                own = other
        weights[module] = exact_weight(tensors, module, own["weight"])
        function = input_function(tensors, module, own["input_tensors"])
        if function:
            functions[module] = function
    state = {k: v for k, v in tensors.items() if not k.endswith("output_scale")}
    notes = "Quantized and exported by Quark. Activations as the configuration says in the logits."
    if options.get("kv"):
        notes += " KV cache e4m3, keys rotated."
    with attention_reads(stored_cache(tensors)):
        write_expected(
            folder, state, weights, __file__, ["amd-quark", "torch", "transformers"], notes,
            full=options.get("full", [K_PROJ]), inputs=functions,
        )  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
