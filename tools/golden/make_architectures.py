"""Writes tests/golden/architectures/: one tiny random model of every decoder family that nibble
declares, as transformers saves it.
"""

import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers import (
    Gemma2Config, Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, GemmaConfig,
    GPTNeoXConfig, GraniteConfig, Olmo2Config, OPTConfig, Phi3Config, PhiConfig, Qwen2Config,
    Qwen3Config, Starcoder2Config,
)  # fmt: skip

from common import GOLDEN, write_made_by
from tiny import VOCABULARY, fresh, logits, tiny_tokens, write_logits

ROOT = GOLDEN / "architectures"
F32, BF16 = torch.float32, torch.bfloat16

TINY = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    vocab_size=VOCABULARY, max_position_embeddings=128, bos_token_id=0, eos_token_id=2,
    pad_token_id=0, attn_implementation="eager",
)  # fmt: skip
GROUPED = dict(TINY, num_key_value_heads=2)
LONGROPE = dict(
    rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
    original_max_position_embeddings=24,
    short_factor=[1.0, 1.1, 1.4], long_factor=[1.0, 1.9, 5.5],
)  # fmt: skip
GEMMA = dict(GROUPED, head_dim=12, query_pre_attn_scalar=20, sliding_window=6)
GEMMA3_ROPE = {
    "full_attention": dict(rope_type="linear", factor=4.0, rope_theta=50000.0),
    "sliding_attention": dict(rope_type="default", rope_theta=300.0),
}
GRANITE = dict(
    embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=2.5
)

# name: (config, options)
CASES = {
    "qwen2": (Qwen2Config(**GROUPED), {}),
    "qwen2_windows": (
        Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=1),
        {"layers_keys": False},
    ),
    "qwen3": (Qwen3Config(**GROUPED, head_dim=12, tie_word_embeddings=True), {}),
    "phi3": (Phi3Config(**GROUPED, sliding_window=9), {}),
    "phi3_longrope": (
        Phi3Config(**GROUPED, rope_parameters=LONGROPE, original_max_position_embeddings=24),
        {"long": True},
    ),
    "gemma": (GemmaConfig(**GROUPED, head_dim=12), {}),
    "gemma2": (Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0), {}),
    "gemma3": (
        Gemma3TextConfig(**dict(GEMMA, num_hidden_layers=3), rope_parameters=GEMMA3_ROPE,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        {},
    ),
    "gemma3_with_images": (
        Gemma3Config(
            text_config=Gemma3TextConfig(**GEMMA, layer_types=["sliding_attention",
                                                               "full_attention"]),
            vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                               num_attention_heads=2, image_size=8, patch_size=4),
            mm_tokens_per_image=4, image_token_index=3, boi_token_index=4, eoi_token_index=5,
        ),
        {"images": True},
    ),
    "olmo2": (Olmo2Config(**GROUPED), {}),
    "granite": (GraniteConfig(**GROUPED, **GRANITE, tie_word_embeddings=True), {}),
    "starcoder2": (Starcoder2Config(**GROUPED, sliding_window=7), {}),
    "opt": (
        OPTConfig(**{k: v for k, v in TINY.items() if k != "intermediate_size"}, ffn_dim=48,
                  word_embed_proj_dim=32),
        {},
    ),
    "opt_without_prefix": (
        OPTConfig(**{k: v for k, v in TINY.items() if k != "intermediate_size"}, ffn_dim=48,
                  word_embed_proj_dim=32),
        {"strip": "model."},
    ),
    "phi": (PhiConfig(**TINY, partial_rotary_factor=0.5), {}),
    "phi_qk_norm": (PhiConfig(**dict(TINY, num_hidden_layers=1), qk_layernorm=True), {}),
    "gpt_neox": (GPTNeoXConfig(**TINY, rotary_pct=0.25), {}),
    "gpt_neox_sequential": (
        GPTNeoXConfig(**dict(TINY, num_hidden_layers=1), rotary_pct=0.5,
                      use_parallel_residual=False),
        {},
    ),
    "opt_350m": (
        OPTConfig(**{k: v for k, v in TINY.items() if k != "intermediate_size"}, ffn_dim=48,
                  word_embed_proj_dim=20, do_layer_norm_before=False),
        {},
    ),
}  # fmt: skip


def randomize(model, seed):
    """Random weights with outlier channels, as trained ones have; norms about one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    adds_one = "gemma" in model.config.model_type
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.rsplit(".", 2)[-2]
            if is_norm and name.endswith("weight"):
                value = (0 if adds_one else 1) + 0.2 * normal(*parameter.shape)
            elif parameter.ndim < 2:
                value = 0.2 * normal(*parameter.shape)
            elif "embed" in name or "lm_head" in name:
                value = (0.05 if adds_one else 0.25) * normal(*parameter.shape)
            else:
                value = normal(*parameter.shape) / parameter.shape[-1] ** 0.5
                value[:, torch.rand(parameter.shape[1], generator=generator) < 0.03] *= 4
            parameter.copy_(value)
    return model


def build(config, seed):
    if isinstance(config, Gemma3Config):
        return randomize(Gemma3ForConditionalGeneration(config).eval(), seed)
    return randomize(AutoModelForCausalLM.from_config(config).eval(), seed)


def read_back(folder, config):
    cls = Gemma3ForConditionalGeneration if isinstance(config, Gemma3Config) else None
    cls = cls or AutoModelForCausalLM
    return cls.from_pretrained(folder, dtype=F32, attn_implementation="eager").eval()


def finish(folder, model, options, notes):
    expected = folder / "expected"
    expected.mkdir()
    tokens = tiny_tokens(12)
    arrays = {"tokens": tokens, "logits": logits(model, tokens)}
    if options.get("long"):
        tokens = tiny_tokens(32, seed=8)
        arrays.update({"long.tokens": tokens, "long.logits": logits(model, tokens)})
    write_logits(expected, **arrays)
    write_made_by(expected / "made_by.json", __file__, ["torch", "transformers"], notes)
    print(folder.name, float(arrays["logits"].std()))


def make(name):
    config, options = CASES[name]
    folder = fresh(ROOT / name)
    model = build(config, list(CASES).index(name) + 1).to(BF16)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    if "strip" in options:
        tensors = {k.removeprefix(options["strip"]): v for k, v in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    if options.get("layers_keys") is False:
        document = json.loads((folder / "config.json").read_text())
        document.pop("layer_types")
        (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    finish(folder, read_back(folder, config), options,
           "Logits by transformers in float32, eager attention, from this folder.")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
