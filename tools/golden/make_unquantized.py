"""Writes tests/golden/unquantized/: folders as transformers saves them, in three types and many
shapes.
"""

import sys

import torch
from transformers import AutoModelForCausalLM

from common import GOLDEN, write_made_by
from tiny import as_transformers_4, fresh, logits, save_tokenizer, tiny_config, tiny_model
from tiny import tiny_tokens, write_logits

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SMALL = dict(hidden_size=64, intermediate_size=128)
ONE = dict(SMALL, num_hidden_layers=1)
THETA = 10000.0
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
YARN = dict(
    rope_type="yarn", rope_theta=THETA, factor=4.0, original_max_position_embeddings=32,
    beta_fast=16.0, beta_slow=2.0,
)  # fmt: skip
LONGROPE = dict(
    rope_type="longrope", rope_theta=THETA, factor=8.0, original_max_position_embeddings=24,
    short_factor=[1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5],
    long_factor=[1.0, 1.3, 1.9, 2.8, 4.0, 5.5, 6.5, 8.0],
)  # fmt: skip


ROPE = dict(ONE, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1)


def rope(parameters, positions=256):
    return dict(ROPE, rope_parameters=parameters, max_position_embeddings=positions)


# name: (dtype, configuration changes, options)
CASES = {
    "f32_untied": (F32, dict(ONE, tie_word_embeddings=False), {}),
    "f16_tied": (F16, dict(SMALL), {}),
    "bf16_untied": (BF16, dict(SMALL, tie_word_embeddings=False), {"v4": True}),
    "bf16_biases": (BF16, dict(SMALL, attention_bias=True, mlp_bias=True), {"v4": True}),
    "bf16_head_dim_24": (BF16, dict(ONE, head_dim=24, num_key_value_heads=1), {}),
    "bf16_ragged_sizes": (BF16, dict(ONE, hidden_size=72, intermediate_size=100, head_dim=18), {}),
    "f16_sharded": (F16, dict(SMALL, tie_word_embeddings=False), {"shard": "60KB"}),
    "bf16_norms_f32": (BF16, dict(ONE), {"f32_norms": True}),
    "mistral_window": (BF16, dict(SMALL, sliding_window=8), {"mistral": True}),
    "mistral_no_window": (BF16, dict(ONE, sliding_window=None), {"mistral": True, "v4": True}),
    "rope_theta": (BF16, rope(dict(rope_type="default", rope_theta=250.0)), {"v4": True}),
    "rope_linear": (
        BF16,
        rope(dict(rope_type="linear", rope_theta=THETA, factor=4.0)),
        {"v4": True},
    ),
    "rope_dynamic": (
        BF16,
        rope(dict(rope_type="dynamic", rope_theta=THETA, factor=2.0), 24),
        {"v4": True, "long": True},
    ),
    "rope_llama3": (BF16, rope(LLAMA3), {"v4": True, "long": True}),
    "rope_llama3_new_keys": (BF16, rope(LLAMA3), {"long": True}),
    "rope_yarn": (BF16, rope(YARN, 128), {"v4": True, "long": True}),
    "rope_yarn_mscale": (
        BF16,
        rope(dict(YARN, mscale=0.8, mscale_all_dim=0.5, truncate=False), 128),
        {"long": True},
    ),
    "rope_yarn_attention_factor": (
        BF16,
        rope(dict(YARN, attention_factor=0.9), 128),
        {"v4": True, "long": True},
    ),
    "rope_longrope": (BF16, rope(LONGROPE, 192), {"v4": True, "long": True}),
}


def make(name):
    dtype, changes, options = CASES[name]
    folder = fresh(GOLDEN / "unquantized" / name)
    config = tiny_config(mistral=options.get("mistral", False), **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 1).to(dtype)
    if options.get("f32_norms"):
        for module_name, module in model.named_modules():
            if module_name.endswith("norm"):
                module.float()
    model.save_pretrained(folder, max_shard_size=options.get("shard", "1GB"))
    save_tokenizer(folder)
    if options.get("v4"):
        as_transformers_4(folder)

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=F32, attn_implementation="eager"
    ).eval()
    expected = folder / "expected"
    expected.mkdir()
    tokens = tiny_tokens()
    arrays = {"tokens": tokens, "logits": logits(model, tokens)}
    if options.get("long"):
        # Past the original context: frequencies of dynamic and longrope change with the length.
        tokens = tiny_tokens(32, seed=8)
        arrays.update({"long.tokens": tokens, "long.logits": logits(model, tokens)})
    write_logits(expected, **arrays)
    notes = "Logits by transformers in float32, eager attention, from this folder."
    if options.get("v4"):
        notes += " config.json was rewritten with the keys of transformers 4."
    write_made_by(
        expected / "made_by.json", __file__, ["torch", "transformers", "tokenizers"], notes
    )
    print(name, float(arrays["logits"].std()))


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
