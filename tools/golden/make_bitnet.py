"""Writes tests/golden/bitnet/: tiny Llamas whose linears are BitNet's, packed by transformers.

Digits are those of transformers' WeightQuant (what "online" computes); packed with its pack_weights.
Expected weights are digit / weight_scale (bitlinear) or digit * weight_scale (autobitlinear), and
online digit / (1 / mean). Activations are int8 per token in the logits.
"""

import os
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from transformers.integrations.bitnet import ActQuant, WeightQuant, pack_weights, unpack_weights

from common import GOLDEN
from quantized import float_tensors, linear_names, save_checkpoint, write_expected
from tiny import fresh, tiny_config, tiny_model

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)

# name: (configuration changes, linear_class, quantization_mode, stored, options)
CASES = {
    "bitlinear": (SMALL, "bitlinear", "offline", "packed", {"v4": True}),
    "auto_offline": (dict(SMALL, attention_bias=True), "autobitlinear", "offline", "packed", {}),
    "auto_online": (SMALL, "autobitlinear", "online", "floats", {}),
}


def make(name):
    changes, linear, mode, stored, options = CASES[name]
    folder = fresh(GOLDEN / "bitnet" / name)
    config = tiny_config(dtype=torch.bfloat16, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 701)
    tensors = float_tensors(model, config, torch.bfloat16)
    weights = {}
    for module in linear_names(model):
        weight = tensors[f"{module}.weight"].float()
        scale = 1.0 / weight.abs().mean().clamp(min=1e-5)
        digits = (weight * scale).round().clamp(-1, 1) + 0.0  # no negative zeros
        if stored == "floats":
            weights[module] = digits / scale
            assert torch.equal(WeightQuant.apply(weight), weights[module])
            continue
        stored_scale = (scale if linear == "bitlinear" else 1 / scale).to(torch.bfloat16)
        tensors[f"{module}.weight_scale"] = stored_scale.reshape(1)
        packed = pack_weights(digits.clone())
        assert torch.equal(unpack_weights(packed, torch.float32), digits)
        tensors[f"{module}.weight"] = packed
        factor = stored_scale.float()
        weights[module] = digits * (1 / factor if linear == "bitlinear" else factor)
    quantization = {
        "quant_method": "bitnet", "linear_class": linear, "quantization_mode": mode,
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    if linear == "bitlinear":  # as the first folders had it
        quantization = {"quant_method": "bitnet", "modules_to_not_convert": None}
    save_checkpoint(folder, config, tensors, quantization, options.get("v4"))
    notes = "Packed by transformers' pack_weights. Activations int8 per token."
    write_expected(
        folder, tensors, weights, __file__, ["torch", "transformers"], notes,
        inputs={module: ActQuant.apply for module in weights},
    )  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
