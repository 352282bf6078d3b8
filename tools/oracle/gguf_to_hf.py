"""A Llama GGUF file -> a Hugging Face folder in float32, for transformers to answer from.

usage: gguf_to_hf.py MODEL.gguf FOLDER

Every tensor is the gguf package's dequantization; rows of q and k are permuted back. Only
byte-level BPE vocabularies whose pre-tokenizer is named below are written.
"""

import argparse
import json
import pathlib
import re

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

import golden  # noqa: F401  (adds tools/golden to the path)
from make_gguf import permute_back
from tiny import as_transformers_4

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
# What stands before the byte-level step, by tokenizer.ggml.pre.
PRE = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}


def fields(reader):
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def hugging_face_name(name):
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.{block[3]}"
    module, suffix = name.rsplit(".", 1)
    return f"{NAMES[module]}.{suffix}"


def read_state(reader, meta):
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        count = next((n for part, n in heads.items() if f".{part}." in tensor.name), None)
        values = permute_back(values, count) if count else values
        state[hugging_face_name(tensor.name)] = torch.from_numpy(np.array(values, dtype=np.float32))
    return state


def configuration(meta, tied):
    heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return LlamaConfig(
        architectures=["LlamaForCausalLM"], dtype=torch.float32, hidden_size=hidden,
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta.get("llama.attention.key_length", hidden // heads),
        max_position_embeddings=meta["llama.context_length"],
        # Shortest decimal of the file's float32.
        rms_norm_eps=float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        vocab_size=len(meta["tokenizer.ggml.tokens"]), tie_word_embeddings=tied,
        bos_token_id=meta["tokenizer.ggml.bos_token_id"],
        eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        rope_parameters={"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
    )  # fmt: skip


def tokenizer(meta):
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*PRE[meta["tokenizer.ggml.pre"]], byte_level])
    made.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == gguf.TokenType.CONTROL]
    made.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    special = {
        f"{role}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in meta
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **special)
    fast.chat_template = meta.get("tokenizer.chat_template")
    return fast


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("gguf")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.gguf)
    meta = fields(reader)
    state = read_state(reader, meta)
    args.folder.mkdir(parents=True, exist_ok=True)
    save_file(state, args.folder / "model.safetensors", {"format": "pt"})
    config = configuration(meta, tied="lm_head.weight" not in state)
    config.save_pretrained(args.folder)
    as_transformers_4(args.folder)
    stop = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    (args.folder / "generation_config.json").write_text(json.dumps(stop, indent=1) + "\n")
    tokenizer(meta).save_pretrained(args.folder)


if __name__ == "__main__":
    main()
