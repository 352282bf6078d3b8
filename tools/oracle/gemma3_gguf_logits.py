"""Logits of transformers in float32 on the dequantized weights of a Gemma 3 GGUF file.

usage: gemma3_gguf_logits.py MODEL.gguf --tokens 2,818,... --out LOGITS.npy

Every tensor is the gguf package's dequantization; norms are stored there with the one added.
Writes LOGITS.npy, float32 (tokens, vocabulary), and LOGITS.tokens.npy, for compare_logits.py.
"""

import argparse
import re

import gguf
import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def config_of(meta, vocabulary):
    def key(name, default=None):
        return meta.get(f"gemma3.{name}", default)

    return Gemma3TextConfig(
        vocab_size=vocabulary,
        hidden_size=key("embedding_length"),
        num_hidden_layers=key("block_count"),
        intermediate_size=key("feed_forward_length"),
        num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"),
        query_pre_attn_scalar=key("attention.key_length"),
        max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        sliding_window=key("attention.sliding_window"),
        rope_theta=key("rope.freq_base"),
        rope_local_base_freq=key("rope.freq_base_swa", 10000.0),
        attn_implementation="eager",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tokens = np.array([int(t) for t in args.tokens.split(",")])
    reader = gguf.GGUFReader(args.model)
    meta = {
        k: f.contents() for k, f in reader.fields.items() if k.startswith("gemma3.")
    }
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        module = tensor.name.removesuffix(".weight")
        name = f"model.layers.{block[1]}.{NAMES[block[2]]}" if block else OUTSIDE[module]
        values = values - 1 if name.endswith("norm") else values
        state[f"{name}.weight"] = torch.from_numpy(np.array(values, dtype=np.float32))
    with torch.no_grad():
        config = config_of(meta, len(state["model.embed_tokens.weight"]))
        model = Gemma3ForCausalLM.from_pretrained(None, config=config, state_dict=state)
        answer = model.eval()(torch.from_numpy(tokens)[None]).logits[0].float()
    np.save(args.out, answer.numpy())
    np.save(args.out.removesuffix(".npy") + ".tokens.npy", tokens)


if __name__ == "__main__":
    main()
