"""Writes tests/golden/rope/frequencies.json: what transformers' modeling_rope_utils computes.

Run with transformers 5.24.0 and torch 2.15 (CPU) from the top of the tree:

    python tools/golden/make_rope.py

Each case holds the numbers of a config.json, the length of the sequence, and the inverse
frequencies (float32) and attention factor that transformers makes of them.
"""

import json
import math
import pathlib

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def default_frequencies(theta, dim):
    # The "default" type has no entry in the table; every model computes it like this.
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)), 1.0


def case(name, head_dim, parameters, max_positions=4096, length=None):
    parameters = {"rope_theta": 10000.0, **parameters}
    config = LlamaConfig(
        hidden_size=head_dim * 4,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rope_parameters=dict(parameters),
    )
    kind = parameters["rope_type"]
    if kind == "default":
        dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        frequencies, factor = default_frequencies(parameters["rope_theta"], dim)
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    assert frequencies.dtype == torch.float32
    return {
        "name": name,
        "head_dim": head_dim,
        "max_position_embeddings": max_positions,
        "length": length or 1,
        "rope_parameters": parameters,
        "inv_freq": [float(f"{float(v):.9g}") for v in frequencies],  # nine digits give the float32 back
        "attention_factor": float(factor),
    }


def ramp(pairs, low, high):
    return [round(low + (high - low) * i / (pairs - 1), 4) for i in range(pairs)]


def cases():
    yield case("default 64", 64, {"rope_type": "default"})
    yield case("default 128, theta 5e5", 128, {"rope_type": "default", "rope_theta": 500000.0})
    yield case("default, a quarter", 96, {"rope_type": "default", "partial_rotary_factor": 0.25})
    yield case("default, 0.4 of 80", 80, {"rope_type": "default", "partial_rotary_factor": 0.4})
    yield case("linear 4", 64, {"rope_type": "linear", "factor": 4.0})
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    for length in (1, 4096, 4097, 9000):
        yield case(f"dynamic at {length}", 64, dynamic, length=length)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    yield case("yarn (Qwen2.5)", 128, {**yarn, "rope_theta": 1000000.0}, 131072)
    yield case("yarn, betas", 64, {**yarn, "beta_fast": 16.0, "beta_slow": 2.0}, 131072)
    yield case("yarn, attention factor", 64, {**yarn, "attention_factor": 0.7}, 131072)
    yield case("yarn, no truncation (gpt-oss)", 64,
               {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": False, "original_max_position_embeddings": 4096,
                "rope_theta": 150000.0}, 131072)
    deepseek = {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 4096}
    yield case("yarn, equal mscales (DeepSeek V3)", 64,
               {**deepseek, "mscale": 1.0, "mscale_all_dim": 1.0}, 163840)
    yield case("yarn, mscales", 64, {**deepseek, "mscale": 0.707, "mscale_all_dim": 1.2}, 163840)
    yield case("yarn, one mscale", 64, {**deepseek, "mscale": 0.707}, 163840)
    yield case("yarn, short context", 64,
               {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}, 128)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
              "rope_theta": 500000.0}
    yield case("llama3 (3.1)", 128, llama3, 131072)
    yield case("llama3 (3.2)", 64, {**llama3, "factor": 32.0}, 131072)
    for factor in (None, 1.0, 8.0):
        for length in (1, 4096, 4097):
            yield case(f"longrope at {length}, factor {factor}", 96,
                       {"rope_type": "longrope", "factor": factor,
                        "short_factor": ramp(48, 1.0, 1.3), "long_factor": ramp(48, 1.1, 60.0),
                        "original_max_position_embeddings": 4096}, 131072, length)
    yield case("longrope, attention factor, half", 64,
               {"rope_type": "longrope", "factor": 16.0, "attention_factor": 1.25,
                "partial_rotary_factor": 0.5, "short_factor": ramp(16, 1.0, 1.0),
                "long_factor": ramp(16, 1.0, 16.0),
                "original_max_position_embeddings": 2048}, 32768, 3000)
    yield case("proportional", 64,
               {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 1.0})


def main():
    out = pathlib.Path("tests/golden/rope/frequencies.json")
    made = list(cases())
    for one in made:
        assert all(math.isfinite(v) for v in one["inv_freq"])
    head = {
        "made_by": "tools/golden/make_rope.py",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    lines = ",\n  ".join(json.dumps(one) for one in made)
    out.write_text(json.dumps(head)[:-1] + ',\n "cases": [\n  ' + lines + "]}\n")


main()
