"""A quantized KV cache in transformers' Llamas: what eager attention reads is changed on the way."""

import contextlib

import torch
import transformers.models.llama.modeling_llama as llama


@contextlib.contextmanager
def attention_reads(change):
    """Within, attention reads change("k" or "v", x) in place of x: the rotated keys, or the values,
    (batch, heads, tokens, dim)."""
    eager = llama.eager_attention_forward

    def attention(module, query, key, value, *args, **kwargs):
        return eager(module, query, change("k", key), change("v", value), *args, **kwargs)

    llama.eager_attention_forward = attention
    try:
        yield
    finally:
        llama.eager_attention_forward = eager


def quantized(kind, scales):
    """The change for a cache of e4m3 or int8; scales: {"k": (scale, zero), "v": ...}."""

    def change(side, x):
        scale, zero = (t.to(x.dtype) for t in scales[side])
        if kind == "e4m3":
            code = (x / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).to(x.dtype)
        else:
            code = torch.round(x / scale + zero).clamp(-128, 127)
        return (code - zero) * scale

    return change


def stored_cache(tensors):
    """The same for a folder of one layer whose tensors hold fp8 scales; no change without."""
    scales = {
        side: (value.float().reshape([]), torch.zeros(()))
        for side in "kv"
        for key, value in tensors.items()
        if key.endswith((f".{side}_scale", f".{side}_proj.output_scale"))
    }
    return quantized("e4m3", scales) if scales else lambda side, x: x
