"""Writes tests/golden/architectures/gguf_<case>/: the tiny models of make_architectures.py as GGUF
files, laid out as llama.cpp's converter does for their family.

Names come from gguf.TensorNameMap; norms and biases are float32. What a family has of its own:

  gemma, gemma2, gemma3  norms are stored with the one added
  granite                the rows of q and k are permuted as Llama's are (README.md draws it)
  gptneox                query_key_value, head by head in Hugging Face's files, is all of q, then all
                         of k, then all of v
  phi3                   rope_factors_short and rope_factors_long are tensors
  qwen2_fused            q, k, v in one tensor, as the converter writes them when asked to

Expected weights: gguf.quants.dequantize, under the file's names. Expected logits: transformers in
float32 on the stored values, put back into Hugging Face's layout.
"""

import sys

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH
from gguf import GGMLQuantizationType as T
from transformers import (
    Gemma2Config, Gemma3TextConfig, GemmaConfig, GPTNeoXConfig, GraniteConfig, Olmo2Config,
    Phi3Config, PhiConfig, Qwen2Config, Qwen3Config, Starcoder2Config,
)  # fmt: skip

from common import GOLDEN, write_expected_weights, write_made_by
from make_architectures import GEMMA, GEMMA3_ROPE, GRANITE, GROUPED, LONGROPE, TINY, build
from make_gguf import encode, permute, permute_back
from tiny import fresh, logits, tiny_tokens, write_logits

# Blocks hold 32 inputs: every K is a multiple of that.
SIZES = dict(intermediate_size=64)
Q = dict(GROUPED, **SIZES)
G = dict(GEMMA, **SIZES, head_dim=16)

# name: (architecture, config, types by module, the rest "default")
CASES = {
    "qwen2": (MODEL_ARCH.QWEN2, Qwen2Config(**Q), {"default": T.Q8_0, "ffn_down": T.Q4_0}),
    "qwen2_fused": (MODEL_ARCH.QWEN2, Qwen2Config(**Q), {"default": T.Q5_1}),
    "qwen3": (MODEL_ARCH.QWEN3, Qwen3Config(**Q, head_dim=16), {"default": T.Q4_1}),
    "phi3": (
        MODEL_ARCH.PHI3,
        Phi3Config(**Q, rope_parameters=LONGROPE, original_max_position_embeddings=24,
                   sliding_window=9),
        {"default": T.Q8_0, "ffn_up": T.Q4_0},
    ),
    "gemma": (MODEL_ARCH.GEMMA, GemmaConfig(**Q, head_dim=16), {"default": T.Q5_0}),
    "gemma2": (
        MODEL_ARCH.GEMMA2,
        Gemma2Config(**dict(G, query_pre_attn_scalar=16), attn_logit_softcapping=2.0,
                     final_logit_softcapping=3.0),
        {"default": T.Q8_0, "attn_q": T.Q4_0},
    ),
    "gemma3": (
        MODEL_ARCH.GEMMA3,
        Gemma3TextConfig(**dict(G, query_pre_attn_scalar=16, num_hidden_layers=6),
                         rope_parameters=GEMMA3_ROPE),
        {"default": T.Q4_0, "attn_v": T.Q8_0},
    ),
    "olmo2": (MODEL_ARCH.OLMO2, Olmo2Config(**Q), {"default": T.Q8_0, "ffn_gate": T.Q5_0}),
    "granite": (
        MODEL_ARCH.GRANITE,
        GraniteConfig(**Q, **GRANITE, tie_word_embeddings=True),
        {"default": T.Q8_0, "attn_k": T.Q4_1},
    ),
    "starcoder2": (MODEL_ARCH.STARCODER2, Starcoder2Config(**Q), {"default": T.Q8_0}),
    "phi2": (MODEL_ARCH.PHI2, PhiConfig(**dict(TINY, **SIZES)), {"default": T.Q4_0}),
    "gptneox": (MODEL_ARCH.GPTNEOX, GPTNeoXConfig(**dict(TINY, **SIZES), rotary_pct=0.25),
                {"default": T.Q8_0}),
}  # fmt: skip


def first(*values):
    return next(v for v in values if v is not None)


def add_configuration(writer, arch, config):
    """The keys that the converter writes for the family."""
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    heads = config.num_attention_heads
    head_dim = first(getattr(config, "head_dim", None), config.hidden_size // heads)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    if arch != MODEL_ARCH.GPTNEOX:
        writer.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None) and arch != MODEL_ARCH.GRANITE:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(
            first(getattr(config, "norm_epsilon", None), getattr(config, "layer_norm_eps", None))
        )
    if arch in (MODEL_ARCH.PHI2, MODEL_ARCH.PHI3, MODEL_ARCH.GPTNEOX):
        writer.add_rope_dimension_count(int(full["partial_rotary_factor"] * head_dim))
    if arch not in (MODEL_ARCH.GEMMA, MODEL_ARCH.GEMMA2, MODEL_ARCH.PHI2, MODEL_ARCH.GPTNEOX):
        writer.add_rope_freq_base(full["rope_theta"])
    if full.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if arch == MODEL_ARCH.GEMMA3:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if arch in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3, MODEL_ARCH.PHI3):
        writer.add_sliding_window(config.sliding_window)
    if arch == MODEL_ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == MODEL_ARCH.PHI3:
        original = full["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        longer = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(longer) / np.log(original))))
    if arch == MODEL_ARCH.GRANITE:
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch == MODEL_ARCH.GPTNEOX:
        writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.GUESSED)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def to_file(arch, config, name, values):
    """A tensor in the file's layout."""
    if "GEMMA" in arch.name and name.endswith("norm.weight"):
        return values + 1
    if arch == MODEL_ARCH.GRANITE and ".q_proj." in name:
        return permute(values, config.num_attention_heads)
    if arch == MODEL_ARCH.GRANITE and ".k_proj." in name:
        return permute(values, config.num_key_value_heads)
    if arch == MODEL_ARCH.GPTNEOX and "query_key_value" in name:
        apart = values.reshape(config.num_attention_heads, 3, -1, *values.shape[1:])
        return apart.swapaxes(0, 1).reshape(values.shape)
    return values


def from_file(arch, config, name, values):
    if "GEMMA" in arch.name and name.endswith("norm.weight"):
        return values - 1
    if arch == MODEL_ARCH.GRANITE and ".q_proj." in name:
        return permute_back(values, config.num_attention_heads)
    if arch == MODEL_ARCH.GRANITE and ".k_proj." in name:
        return permute_back(values, config.num_key_value_heads)
    if arch == MODEL_ARCH.GPTNEOX and "query_key_value" in name:
        apart = values.reshape(3, config.num_attention_heads, -1, *values.shape[1:])
        return apart.swapaxes(0, 1).reshape(values.shape)
    return values


def fuse(stored):
    """Puts q, k and v of the stored tensors {name: (values, data, kind)} into one, row after row."""
    out = {}
    for name, (values, data, kind) in stored.items():
        if ".attn_q." in name:
            parts = [stored[name.replace("attn_q", f"attn_{p}")] for p in "qkv"]
            joined = [np.concatenate([p[i] for p in parts]) for i in (0, 1)]
            out[name.replace("attn_q", "attn_qkv")] = (*joined, kind)
        elif ".attn_k." not in name and ".attn_v." not in name:
            out[name] = (values, data, kind)
    return out


def make(case):
    arch, config, types = CASES[case]
    folder = fresh(GOLDEN / "architectures" / f"gguf_{case}")
    seed = list(CASES).index(case) + 701
    model = build(config, seed)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[arch])
    add_configuration(writer, arch, config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    stored, state = {}, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, suffix = name.rsplit(".", 1)
        # The package knows GPT-NeoX's head by the name that its files have.
        stem = "embed_out" if arch == MODEL_ARCH.GPTNEOX and stem == "lm_head" else stem
        module = names.get_name(stem)
        values = np.ascontiguousarray(to_file(arch, config, name, tensor.numpy()))
        data, kind = values, T.F32
        if values.ndim == 2:
            kind = types.get(module.split(".")[-1], types["default"])
            data, values = encode(rng, values, kind)
        stored[f"{module}.{suffix}"] = (values, data, kind)
        back = from_file(arch, config, name, values)
        state[name] = torch.from_numpy(np.array(back, dtype=np.float32))
    if case.endswith("fused"):
        stored = fuse(stored)
    if arch == MODEL_ARCH.PHI3:
        for which in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{which}_factor"], dtype=np.float32)
            stored[f"rope_factors_{which}.weight"] = (factors, factors, T.F32)
    weights = {}
    for name, (values, data, kind) in stored.items():
        writer.add_tensor(name, data, raw_dtype=kind)
        if values.ndim == 2:
            weights[name.rsplit(".", 1)[0]] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(expected, weights, [])
    tokens = tiny_tokens(12)
    arrays = {"tokens": tokens, "logits": logits(model, tokens)}
    if arch == MODEL_ARCH.PHI3:
        tokens = tiny_tokens(32, seed=8)
        arrays.update({"long.tokens": tokens, "long.logits": logits(model, tokens)})
    write_logits(expected, **arrays)
    write_made_by(
        expected / "made_by.json", __file__, ["gguf", "torch", "transformers"],
        "Layout of llama.cpp's converter; logits by transformers in float32 on the stored values.",
    )  # fmt: skip
    print(case, float(arrays["logits"].std()))


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
