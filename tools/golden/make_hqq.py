"""Writes tests/golden/hqq/: tiny Llamas whose linears hqq quantized and saved, on a CPU.

A module's tensors are those of HQQLinear.state_dict. Expected weights are hqq's own dequantization
with scales and zeros widened to float32; a decoder of the packing written here must agree.
"""

import sys

import numpy as np
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

from common import GOLDEN
from quantized import K_PROJ, float_tensors, linear_names, save_checkpoint, write_expected
from tiny import fresh, tiny_config, tiny_model

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
CROSSING = dict(ONE, hidden_size=96, intermediate_size=80, num_attention_heads=4)

# name: (configuration changes, arguments of BaseQuantizeConfig, dtype, options)
CASES = {
    "b4_g32_bf16": (
        dict(SMALL, attention_bias=True), dict(nbits=4, group_size=32, axis=1), torch.bfloat16,
        {"v4": True, "skip": ["model.layers.0.mlp.down_proj"]},
    ),
    "b4_crossing": (CROSSING, dict(nbits=4, group_size=64, axis=1), torch.float16, {}),
    "b4_axis0": (SMALL, dict(nbits=4, group_size=64, axis=0), torch.float16, {}),
    "b8_g32": (SMALL, dict(nbits=8, group_size=32, axis=1), torch.bfloat16, {}),
    "b3_g32": (SMALL, dict(nbits=3, group_size=32, axis=1), torch.float16, {}),
    "b2_g16": (SMALL, dict(nbits=2, group_size=16, axis=1), torch.float16, {}),
    "b1_g32": (SMALL, dict(nbits=1, group_size=32, axis=1), torch.float16, {}),
}  # fmt: skip
PARTS = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}


def decode(packed, scale, zero, bits, shape):
    """The layout as hqq.cc draws it."""
    scale, zero = scale.float(), zero.float()
    size = shape[0] * shape[1]
    by_row = not (scale.shape[0] == 1 and scale.numel() > 1)
    group = size // scale.numel()
    columns = group if by_row else scale.numel()
    words = packed.contiguous().view(torch.int32 if bits == 3 else torch.uint8)
    words = words.numpy().astype(np.int64).reshape(-1, columns)
    parts = PARTS[bits]
    code = np.concatenate(
        [words >> bits * (parts - 1 - p) & ((1 << bits) - 1) for p in range(parts)]
    )
    code = torch.from_numpy(code[: size // columns].astype(np.float32))
    return ((code - zero) * scale).reshape(shape)


def make(name):
    changes, arguments, dtype, options = CASES[name]
    folder = fresh(GOLDEN / "hqq" / name)
    config = tiny_config(dtype=dtype, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 601).to(dtype)
    tensors = float_tensors(model, config, dtype)
    skip = options.get("skip", [])
    weights = {}
    quant_config = BaseQuantizeConfig(**arguments)
    for module in linear_names(model, skip):
        layer = HQQLinear(
            model.get_submodule(module), BaseQuantizeConfig(**arguments), compute_dtype=dtype,
            device="cpu", del_orig=False,
        )  # fmt: skip
        del tensors[f"{module}.weight"]
        for key, value in layer.state_dict().items():
            tensors[f"{module}.{key}"] = value
        meta = dict(layer.meta, compute_dtype=torch.float32)
        meta.update(scale=meta["scale"].float(), zero=meta["zero"].float())
        weights[module] = Quantizer.dequantize(layer.W_q, meta).float().detach()
        own = decode(
            layer.W_q.detach(), layer.meta["scale"], layer.meta["zero"], arguments["nbits"],
            weights[module].shape,
        )  # fmt: skip
        assert torch.equal(own, weights[module]), module
    quantization = {
        "quant_config": {
            k: v for k, v in quant_config.items() if k == "weight_quant_params"
        },
        "quant_method": "hqq",
        "skip_modules": ["lm_head", *skip],
    }
    save_checkpoint(folder, config, tensors, quantization, options.get("v4"))
    notes = "Every linear is the state_dict of hqq's HQQLinear."
    packages = ["hqq", "torch", "transformers"]
    write_expected(folder, tensors, weights, __file__, packages, notes, full=[K_PROJ])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
