"""Writes tests/golden/gguf/<case>/: whole tiny Llamas as GGUF files, through the gguf package's
writer.

The layout is what llama.cpp's converter writes for Llama: names by gguf.TensorNameMap, norms,
biases and rope factors in float32, and the rows of q and k permuted, head by head, from "two
halves" to "interleaved pairs" (README.md draws it). Weights of types that the gguf package
quantizes are quantized Gaussians; the others are random blocks, scaled to the size of trained
weights.

Expected weights: gguf.quants.dequantize, keyed by the file's module names (blk.0.attn_q), rows as
stored. Expected logits: transformers in float32 on the same values, q and k permuted back.
"""

import json
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from transformers import AutoTokenizer

from common import GOLDEN, write_expected_weights, write_json, write_made_by
from gguf_types import F16_FIELDS, iq1_m, random_blocks
from tiny import TEMPLATE, float_model, fresh, logits, save_tokenizer, tiny_config, tiny_model
from tiny import tiny_tokens, write_logits

SMALL = dict(num_hidden_layers=1, hidden_size=64, intermediate_size=128)
# K-types and their kin have blocks of 256 inputs.
WIDE = dict(
    num_hidden_layers=1,
    hidden_size=256,
    intermediate_size=256,
    num_attention_heads=8,
    num_key_value_heads=1,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
K_MIX = dict(
    attn_q=T.Q5_K, attn_k=T.Q4_K, attn_v=T.Q6_K, attn_output=T.IQ4_XS, ffn_gate=T.Q2_K,
    ffn_up=T.Q3_K, ffn_down=T.Q6_K, token_embd=T.Q6_K,
)  # fmt: skip
IQ_MIX = dict(
    attn_q=T.IQ2_XXS, attn_k=T.IQ2_XS, attn_v=T.IQ2_S, attn_output=T.IQ3_XXS, ffn_gate=T.IQ3_S,
    ffn_up=T.IQ1_S, ffn_down=T.IQ1_M, token_embd=T.IQ4_NL,
)  # fmt: skip

# name: (configuration changes, {module: type, "default": type}, options)
CASES = {
    "q4_1": (dict(SMALL, num_hidden_layers=2), {"default": T.Q4_1, "token_embd": T.Q8_0}, {}),
    "q8_0_untied": (dict(SMALL, tie_word_embeddings=False), {"default": T.Q8_0}, {}),
    "q4_0_biases": (dict(SMALL, attention_bias=True, mlp_bias=True), {"default": T.Q4_0}, {}),
    "q5_0_head_dim": (dict(SMALL, head_dim=24), {"default": T.Q5_0, "attn_output": T.Q5_1}, {}),
    "f16_rope_llama3": (dict(SMALL, rope_parameters=LLAMA3), {"default": T.F16}, {"long": True}),
    "bf16_rope_yarn": (
        dict(SMALL, rope_parameters=YARN, max_position_embeddings=128),
        {"default": T.BF16},
        {"long": True},
    ),
    "f32_rope_linear": (
        dict(SMALL, hidden_size=32, intermediate_size=64, rope_parameters=LINEAR),
        {"default": T.F32},
        {},
    ),
    "mxfp4": (SMALL, {"default": T.MXFP4, "token_embd": T.Q8_0}, {}),
    "ternary": (
        WIDE,
        {"default": T.TQ2_0, "attn_q": T.TQ1_0, "ffn_up": T.TQ1_0, "token_embd": T.Q8_0},
        {},
    ),
    "q4_k_m": (
        WIDE,
        {"default": T.Q4_K, "attn_v": T.Q6_K, "ffn_down": T.Q6_K, "token_embd": T.Q6_K},
        {},
    ),
    "k_mixed": (WIDE, K_MIX, {}),
    "iq_mixed": (WIDE, IQ_MIX, {}),
    "split": (SMALL, {"default": T.Q8_0}, {"split": 6}),
}


def permute(rows, heads):
    """Rows of q or k as llama.cpp stores them: (head, half, i) -> (head, i, half)."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def permute_back(rows, heads):
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def random_weight(rng, shape, qtype, spread):
    """Random blocks of a type without quantizer, with about zero mean and this spread."""
    rows, columns = shape
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    count = rows * columns // block
    if qtype == T.IQ1_M:
        data = iq1_m(rng, count, np.full(count, 1.0))
    else:
        data = random_blocks(rng, qtype, [], count)
    # Types with a minimum: equal scale and minimum fields, and dmin at half the code range.
    if qtype == T.Q2_K:
        data[:, :16] = (data[:, :16] & 15) * 17
    elif qtype in (T.Q4_K, T.Q5_K):
        data[:, 8:12] = data[:, 4:8]
        data[:, 12:16] = (data[:, 12:16] & 15) * 17
    ratio = {T.Q2_K: 1.5, T.Q4_K: 7.5, T.Q5_K: 15.5}.get(qtype)

    def set_scales(scale):
        values = scale * rng.uniform(0.7, 1.4, count)
        if qtype == T.IQ1_M:
            return iq1_m(rng, count, values, data)
        for offset, factor in zip(F16_FIELDS[qtype], (1.0, ratio)):
            data[:, offset : offset + 2] = (
                (values * factor).astype("<f2").view(np.uint8).reshape(count, 2)
            )
        return data

    set_scales(1.0)
    scale = spread / gguf.quants.dequantize(data, qtype).std()
    return set_scales(scale).reshape(rows, -1)


def encode(rng, weight, qtype):
    """float32 (N, K) -> stored bytes, and the float32 values they hold."""
    try:
        data = gguf.quants.quantize(weight, qtype)
    except NotImplementedError:
        data = random_weight(rng, weight.shape, qtype, weight.std())
    values = gguf.quants.dequantize(data, qtype)
    return np.ascontiguousarray(data), np.ascontiguousarray(values, dtype=np.float32).reshape(
        weight.shape
    )


def llama3_factors(model):
    """rope_freqs.weight: what each rotary frequency is divided by."""
    config, rope = model.config, model.config.rope_parameters
    frequencies = rope["rope_theta"] ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / rope["factor"] + smooth)
    np.testing.assert_allclose(frequencies / factors, model.model.rotary_emb.inv_freq, rtol=1e-6)
    return factors.astype(np.float32)


def add_configuration(writer, config):
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.head_dim)
    if config.head_dim != config.hidden_size // config.num_attention_heads:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_file_type(gguf.LlamaFileType.GUESSED)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_vocabulary(writer, tokenizer_json):
    vocabulary = json.loads(tokenizer_json.read_text())
    special = {t["content"] for t in vocabulary["added_tokens"]}
    tokens = sorted(vocabulary["model"]["vocab"], key=vocabulary["model"]["vocab"].get)
    types = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(m) for m in vocabulary["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def add_tensors(writer, model, types, rng):
    """Returns the stored values as {module name in the file: array} and {HF name: tensor}."""
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(model))
    weights, state = {}, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module = names.get_name(name.rsplit(".", 1)[0])
        suffix = name.rsplit(".", 1)[1]
        values = tensor.numpy()
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        values = permute(values, count) if count else values
        if values.ndim == 2:
            kind = types.get(module.split(".")[-1], types.get("default"))
            data, values = encode(rng, values, kind)
            writer.add_tensor(f"{module}.{suffix}", data, raw_dtype=kind)
            weights[module] = values
        else:
            writer.add_tensor(f"{module}.{suffix}", np.ascontiguousarray(values))
        state[name] = torch.from_numpy(np.array(permute_back(values, count) if count else values))
    return weights, state


TEXTS = [
    "The tide went out", " over the flats", "seven  shells,\n\nthree stones", "naïve 蟹 🦀 12345",
    "<|im_start|>user\nhello<|im_end|>\n",
]  # fmt: skip


def make(name):
    changes, types, options = CASES[name]
    folder = fresh(GOLDEN / "gguf" / name)
    expected = folder / "expected"
    expected.mkdir()
    config = tiny_config(**changes)
    seed = list(CASES).index(name) + 401
    model = tiny_model(config, seed)
    writer = gguf.GGUFWriter(
        folder / "model.gguf", "llama", split_max_tensors=options.get("split", 0)
    )
    add_configuration(writer, config)
    save_tokenizer(folder)
    add_vocabulary(writer, folder / "tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    write_json(expected / "tokenize.json", [{"text": t, "ids": tokenizer.encode(t)} for t in TEXTS])
    for path in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / path).unlink()
    weights, state = add_tensors(writer, model, types, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    write_expected_weights(expected, weights, ["blk.0.attn_k"])
    reference = float_model(config, state)
    tokens = tiny_tokens()
    arrays = {"tokens": tokens, "logits": logits(reference, tokens)}
    if options.get("long"):
        tokens = tiny_tokens(32, seed=8)
        arrays.update({"long.tokens": tokens, "long.logits": logits(reference, tokens)})
    write_logits(expected, **arrays)
    notes = "Weights keyed by the file's names, rows as stored (q and k permuted)."
    write_made_by(expected / "made_by.json", __file__, ["gguf", "torch", "transformers"], notes)
    print(name, float(arrays["logits"].std()))


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
