"""Writes tests/golden/fp8/: tiny Llamas with quant_method fp8, per tensor, per channel and in
blocks.

Whole 128x128 blocks are quantized by transformers' own operation (integrations.finegrained_fp8),
which its model loader refuses to run without a GPU but which itself needs none. That operation
passes over weights that do not divide into blocks, so those are padded with zeros to whole blocks,
quantized and cropped: the format's meaning is blocks of 128 with a short last one. Per-tensor and
per-channel folders follow the layout AutoFP8 wrote and vLLM reads: scale = amax / 448, code =
round(weight / scale).

Expected weights are the float32 product of code and scale. Expected logits come twice: 'logits'
with activations quantized as the checkpoint says, 'logits_float' with activations left in float32.
"""

import sys
import types

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from common import GOLDEN, write_expected_weights, write_made_by
from tiny import as_transformers_4, float_model, fresh, logits, save_tokenizer, tiny_config
from tiny import stable_logits, tiny_model, write_logits

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
BLOCK = 128
ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
# 160 and 144 leave a short last block in both directions; 80 rows are less than one block.
RAGGED = dict(ONE, hidden_size=160, intermediate_size=144, head_dim=40)
SQUARE = dict(ONE, intermediate_size=128)
K_PROJ = "model.layers.0.self_attn.k_proj"

# name: (configuration changes, granularity, activation scheme, options)
CASES = {
    "block": (ONE, "block", "dynamic", {}),
    "block_ragged": (RAGGED, "block", "dynamic", {}),
    "block_ue8m0": (SQUARE, "block", "dynamic", {"scale_fmt": "ue8m0"}),
    "block_not_converted": (
        dict(SQUARE, tie_word_embeddings=False),
        "block",
        "dynamic",
        {
            "skip": ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp.up_proj", "lm_head"],
            "skip_key": "modules_to_not_convert",
            "scale_dtype": BF16,
        },
    ),
    "tensor_static": (dict(SMALL, num_hidden_layers=2), "tensor", "static", {"v4": True}),
    "tensor_dynamic": (SMALL, "tensor", "dynamic", {"v4": True, "scale_shape": [1]}),
    "tensor_biases": (
        dict(SMALL, attention_bias=True, mlp_bias=True),
        "tensor",
        "static",
        {"scale_shape": [1]},
    ),
    "tensor_ignored": (
        dict(SMALL, tie_word_embeddings=False),
        "tensor",
        "dynamic",
        {
            "v4": True,
            "skip": ["model.layers.0.mlp.down_proj", "lm_head"],
            "skip_key": "ignored_layers",
        },
    ),
    "tensor_kv_scales": (SMALL, "tensor", "static", {"v4": True, "kv": ["k_scale", "v_scale"]}),
    "tensor_kv_scale_old": (SMALL, "tensor", "static", {"v4": True, "kv": ["kv_scale"]}),
    "tensor_e5m2": (SMALL, "tensor", "dynamic", {"v4": True, "dtype": E5M2}),
    "channel_dynamic": (SMALL, "channel", "dynamic", {"v4": True}),
    "channel_1d_bf16_scales": (SMALL, "channel", "dynamic", {"scale_dtype": BF16, "flat": True}),
}


def to_float8(x, dtype=E4M3):
    """Round to nearest even, saturating."""
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


def quantize_blocks(weight, scale_fmt="float"):
    """transformers' operation, whole blocks -> codes (N, K), scales (ceil(N/128), ceil(K/128))."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    config = FineGrainedFP8Config(weight_block_size=(BLOCK, BLOCK), scale_fmt=scale_fmt)
    made = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert(
        {"w.weight": padded}
    )
    return made["w.weight"][:rows, :columns].contiguous(), made["w.weight_scale_inv"]


def quantize_weight(weight, granularity, dtype=E4M3, scale_dtype=torch.float32):
    """One scale a tensor () or a channel (N, 1)."""
    amax = weight.abs().amax() if granularity == "tensor" else weight.abs().amax(1, keepdim=True)
    scale = (amax.clamp(min=1e-12) / torch.finfo(dtype).max).to(scale_dtype)
    return to_float8(weight / scale.float(), dtype), scale


def dequantize(code, scale):
    """The exact float32 weight; scale is (), (1), (N), (N, 1) or one a block of 128x128."""
    scale = scale.float()
    rows, columns = code.shape
    if scale.ndim == 1 and len(scale) == rows:
        scale = scale[:, None]
    elif scale.ndim == 2 and tuple(scale.shape) != (rows, 1):
        scale = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    return code.float() * scale


def fake_quantize(x, granularity, input_scale=None):
    """Activations as the runtimes quantize them, per tensor (static), token, or 128 columns."""
    if input_scale is not None:
        scale = torch.full((), float(input_scale), dtype=x.dtype)
    elif granularity == "block":
        columns = x.shape[-1]
        groups = torch.nn.functional.pad(x, (0, -columns % BLOCK)).unflatten(-1, (-1, BLOCK))
        scale = groups.abs().amax(-1).clamp(min=1e-10) / 448
        scale = scale.repeat_interleave(BLOCK, -1)[..., :columns]
    else:
        scale = (x.abs().amax(-1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    return to_float8(x * (1 / scale)).to(x.dtype) * scale


def input_scales(model, config, names):
    """amax / 448 of each linear's input over random tokens."""
    seen = {}

    def watch(name):
        def hook(_, inputs):
            seen[name] = max(seen.get(name, 0.0), float(inputs[0].abs().max()))

        return hook

    hooks = [model.get_submodule(n).register_forward_pre_hook(watch(n)) for n in names]
    for seed in range(4):
        logits(
            model, torch.from_numpy(np.random.default_rng(seed).integers(3, config.vocab_size, 64))
        )
    for hook in hooks:
        hook.remove()
    return {n: torch.tensor(seen[n] / 448) for n in names}


def quantize_model(model, config, granularity, scheme, options):
    """Returns (tensors to save, {module: float32 weight}, {module: input scale or None})."""
    skip = options.get("skip", ["lm_head"])
    names = [
        n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n not in skip
    ]
    names = [n for n in names if n != "lm_head"]
    tensors = {k: v.to(BF16) for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    static = input_scales(model, config, names) if scheme == "static" else {}
    weights = {}
    for name in names:
        weight = tensors[f"{name}.weight"].float()
        if granularity == "block":
            code, scale = quantize_blocks(weight, options.get("scale_fmt", "float"))
            scale = scale.to(options["scale_dtype"]) if "scale_dtype" in options else scale
            tensors[f"{name}.weight_scale_inv"] = scale
        else:
            code, scale = quantize_weight(
                weight,
                granularity,
                options.get("dtype", E4M3),
                options.get("scale_dtype", torch.float32),
            )
            scale = scale.flatten() if options.get("flat") else scale
            tensors[f"{name}.weight_scale"] = scale.reshape(options.get("scale_shape", scale.shape))
        tensors[f"{name}.weight"] = code
        weights[name] = dequantize(code, scale)
        if name in static:
            tensors[f"{name}.input_scale"] = static[name].reshape(options.get("scale_shape", []))
    for i, part in enumerate(options.get("kv", [])):
        for layer in range(config.num_hidden_layers):
            tensors[f"model.layers.{layer}.self_attn.{part}"] = torch.tensor(0.02 + 0.013 * i)
    return tensors, weights, static


def quantization_config(granularity, scheme, options):
    values = {"quant_method": "fp8", "activation_scheme": scheme}
    if granularity == "block":
        values = FineGrainedFP8Config(scale_fmt=options.get("scale_fmt", "float")).to_dict()
        values["quant_method"] = "fp8"
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    if options.get("dtype") == E5M2:
        values["fmt"] = "e5m2"
    if "skip" in options:
        values[options["skip_key"]] = options["skip"]
    elif granularity != "block":
        values["ignored_layers"] = ["lm_head"]
    return values


def with_activations(model, names, granularity, static):
    for name in names:

        def hook(_, inputs, scale=static.get(name)):
            return (fake_quantize(inputs[0], granularity, scale),)

        model.get_submodule(name).register_forward_pre_hook(hook)
    return model


def make(name):
    changes, granularity, scheme, options = CASES[name]
    folder = fresh(GOLDEN / "fp8" / name)
    config = tiny_config(dtype=BF16, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 301)
    if name == "block":  # one block of zeros
        model.model.layers[0].mlp.gate_proj.weight.data[128:256] = 0
    tensors, weights, static = quantize_model(model, config, granularity, scheme, options)
    save_file(
        {k: v.contiguous() for k, v in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config.quantization_config = quantization_config(granularity, scheme, options)
    config.save_pretrained(folder)
    save_tokenizer(folder)
    if options.get("v4"):
        as_transformers_4(folder)

    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(
        expected, {k: v.numpy() for k, v in weights.items()}, options.get("full", [K_PROJ])
    )
    extra = ("weight_scale", "weight_scale_inv", "input_scale", "k_scale", "v_scale", "kv_scale")
    state = {k: v for k, v in tensors.items() if not k.endswith(extra)}
    state.update({f"{k}.weight": v for k, v in weights.items()})
    del config.quantization_config
    read = AutoConfig.from_pretrained(folder)
    quantized = with_activations(float_model(read, state), weights, granularity, static)
    tokens, answer, spread = stable_logits(quantized)
    plain = logits(float_model(read, state), tokens)
    write_logits(expected, tokens=tokens, logits=answer, logits_float=plain)
    kinds = {"static": "per tensor, static", "dynamic": "per token"}
    kind = "per token and 128 columns" if granularity == "block" else kinds[scheme]
    notes = (
        f"Activations e4m3 {kind} in 'logits', float32 in 'logits_float'. Tokens chosen so that no "
        f"activation lies near a rounding boundary: float64 runs differ by at most {spread:.2g}."
    )
    if options.get("kv"):
        notes += " The KV cache is not quantized in either."
    write_made_by(expected / "made_by.json", __file__, ["torch", "transformers"], notes)
    print(name, len(weights), "modules, logits", float(answer.std()), "spread", float(spread),
          "activations", float((answer - plain).abs().max()))  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
