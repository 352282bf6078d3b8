"""Writes tests/golden/kv/: tiny Llamas whose checkpoint asks for a quantized KV cache.

The weights are bfloat16; what the folders are about are the scales of keys and values, in three
spellings and granularities. No tool is run: the layouts are those of ModelOpt and compressed-tensors
(facts of their formats), the arithmetic is the formula of both,

    stored = round(x / scale + zero), saturated      read = (stored - zero) * scale

applied to keys after the rotation and to values, for every token that attention reads, its own too.
"""

import sys

import torch
from safetensors.torch import save_file

from common import GOLDEN, write_made_by
from kv import attention_reads, quantized
from tiny import as_transformers_4, float_model, fresh, logits, save_tokenizer, tiny_config
from tiny import stable_logits, tiny_model, tiny_tokens, write_logits

SMALL = dict(num_hidden_layers=1, hidden_size=32, intermediate_size=32)
SCHEME = {
    "type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True,
}  # fmt: skip

# name: (kind, granularity, the scale's name for k or v, kv_cache_scheme)
CASES = {
    "e4m3_tensor": (
        "e4m3",
        "tensor",
        "self_attn.{0}_proj.{0}_scale",
        dict(SCHEME),
    ),
    "e4m3_head": (
        "e4m3",
        "head",
        "self_attn.{0}_scale",
        dict(SCHEME, strategy="attn_head"),
    ),
    "int8_zeros": (
        "int8",
        "tensor",
        "self_attn.{0}_scale",
        dict(SCHEME, type="int", symmetric=False),
    ),
}


def measure(model, granularity):
    """The range of keys and of values over random tokens, for each head or all."""
    dims = (0, 2, 3) if granularity == "head" else (0, 1, 2, 3)
    seen = {}

    def watch(side, x):
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        if side in seen:
            low, high = torch.minimum(low, seen[side][0]), torch.maximum(high, seen[side][1])
        seen[side] = (low, high)
        return x

    with attention_reads(watch):
        for seed in range(4):
            logits(model, tiny_tokens(64, seed))
    return seen


def scale_of(low, high, kind, granularity):
    """Scale, as it will be stored (bfloat16 for each head, else float32), and zero point."""
    if kind == "e4m3":
        scale = torch.maximum(-low, high) / 448
        zero = torch.zeros_like(scale)
    else:
        scale = (high - low) / 255
        zero = torch.round(-128 - low / scale)
    return scale.bfloat16().float() if granularity == "head" else scale, zero


def make(name):
    kind, granularity, spelling, scheme = CASES[name]
    folder = fresh(GOLDEN / "kv" / name)
    config = tiny_config(dtype=torch.bfloat16, **SMALL)
    model = tiny_model(config, seed=list(CASES).index(name) + 701)
    tensors = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}
    tensors.pop("lm_head.weight")
    state = dict(tensors)
    reader = float_model(config, state)
    ranges = measure(reader, granularity)
    scales = {side: scale_of(*ranges[side], kind, granularity) for side in "kv"}
    with attention_reads(quantized(kind, scales)):
        tokens, answer, spread = stable_logits(reader)
    plain = logits(reader, tokens)
    for side, (scale, zero) in scales.items():
        prefix = "model.layers.0." + spelling.format(side)
        if granularity == "head":
            tensors[prefix] = scale.reshape(-1, 1, 1).bfloat16()
        else:
            tensors[prefix] = scale.reshape([])
        if kind == "int8":
            tensors[prefix.replace("_scale", "_zero_point")] = zero.reshape(1).to(torch.int8)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    config.quantization_config = {
        "quant_method": "fp8", "activation_scheme": "dynamic", "kv_cache_scheme": scheme,
    }  # fmt: skip
    config.save_pretrained(folder)
    save_tokenizer(folder)
    as_transformers_4(folder)
    expected = folder / "expected"
    expected.mkdir()
    write_logits(expected, tokens=tokens, logits=answer, logits_float=plain)
    write_made_by(
        expected / "made_by.json", __file__, ["torch", "transformers"],
        f"KV cache {kind}, a scale per {granularity}, in 'logits'; float32 in 'logits_float'. Tokens "
        f"chosen so that float64 runs differ by at most {spread:.2g}.",
    )  # fmt: skip
    print(name, "spread", spread, "cache", float((answer - plain).abs().max()))


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
