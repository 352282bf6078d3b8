"""Writes tests/golden/eetq/: a tiny Llama as transformers saves it with EetqConfig.

EETQ quantizes and packs on the CPU, but only its CUDA build can be installed. The two steps are done
here in numpy. Their output (codes, scales and bytes) was compared with that of the tool's own functions,
symmetric_quantize and preprocess_weights of EETQ 465e972 (github.com/NetEase-FuXi/EETQ,
csrc/cutlass_kernels/cutlass_preprocessors.cc) compiled for the CPU, also on the linears of this very
folder: equal for compute capability 7.5, 8.0, 8.6 and 8.9. Expected weights are code times scale, the
scale as stored.
"""

import sys

import numpy as np
import torch

from common import GOLDEN
from slim import linears, save_folder, slim_config, write_expected
from tiny import tiny_model

ROWS = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
NOTES = (
    "Quantized and packed in numpy; equal byte for byte to symmetric_quantize and preprocess_weights of "
    "EETQ 465e972 compiled for the CPU (compute capability 7.5 to 8.9)."
)

# name: (configuration changes, layers left alone). The tool packs 64 outputs and inputs at a time.
CASES = {
    "bias": (
        dict(intermediate_size=64, head_dim=32, num_key_value_heads=2, attention_bias=True),
        ["lm_head"],
    ),
}


def quantize(weight):
    """(K, N) float16 -> int8 codes, float16 scales: the largest magnitude of an output over 128."""
    weight = weight.astype(np.float32)
    scale = np.abs(weight).max(0) * np.float32(1 / 128)
    with np.errstate(invalid="ignore"):
        x = weight / scale
    x = np.trunc(x + np.copysign(np.float32(0.5), x))  # halves away from zero
    x = np.where(np.isnan(x), 127, x)  # an output of zeros: what the tool's comparisons make of nan
    return np.clip(x, -128, 127).astype(np.int8), scale.astype(np.float16)


def pack(code):
    """(K, N) codes -> the bytes in the order of the tensor cores, under the same shape."""
    k, n = code.shape
    out = code.reshape(k // 16, 16, n)[:, ROWS].reshape(k, n).T
    out = out.reshape(n // 2, 2, k // 64, 64).transpose(0, 2, 1, 3)
    out = out.reshape(-1, 4)[:, [0, 2, 1, 3]].astype(np.int16) + 128
    return out.astype(np.uint8).reshape(k, n).view(np.int8)


def make(name):
    changes, skip = CASES[name]
    config = slim_config(**changes, dtype=torch.float16)
    model = tiny_model(config, seed=list(CASES).index(name) + 761)
    model.model.layers[0].mlp.up_proj.weight.data[5] = 0
    tensors = {k: v.half() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    weights = {}
    for module in linears(model):
        if module in skip:
            continue
        code, scale = quantize(tensors[f"{module}.weight"].numpy().T)
        tensors[f"{module}.weight"] = torch.from_numpy(pack(code))
        tensors[f"{module}.weight_scales"] = torch.from_numpy(scale)
        weights[module] = torch.from_numpy(code.T.astype(np.float32) * scale[:, None].astype(np.float32))
    folder = save_folder(
        GOLDEN / "eetq" / name, config, tensors,
        {"quant_method": "eetq", "weights": "int8", "modules_to_not_convert": skip},
    )  # fmt: skip
    (folder / "generation_config.json").unlink(missing_ok=True)
    plain = {k: v for k, v in tensors.items() if v.dtype != torch.int8}
    write_expected(folder, config, plain, weights, {}, __file__, ["numpy", "torch", "transformers"],
                   NOTES)  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
