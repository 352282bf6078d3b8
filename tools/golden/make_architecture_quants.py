"""Writes tests/golden/architectures/{gptq,fp8}_<case>/: tiny models of make_architectures.py
quantized, so that fused projections, biases and unusual names meet the schemes.

GPTQ folders have the layout that gptqmodel writes (4 bits, groups of 32, symmetric, version 1), by
its formula: qweight holds code + 8 of eight inputs a word, qzeros 7 (zero - 1), g_idx k // 32. FP8
folders are those of make_fp8.py: a scale a tensor, an output, a block, or a part of a fused
projection.

Expected weights are the float32 product of code and scale. Expected logits: transformers in float32
on them; for FP8 with activations quantized per token, as the runtimes do.
"""

import functools
import json
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    Gemma2Config, Gemma3TextConfig, GPTNeoXConfig, GraniteConfig, Olmo2Config, OPTConfig,
    Phi3Config, PhiConfig, Qwen2Config, Qwen3Config, Starcoder2Config,
)  # fmt: skip

from common import GOLDEN, write_expected_weights, write_made_by
from make_architectures import GEMMA, GEMMA3_ROPE, GRANITE, GROUPED, TINY, build
from make_fp8 import dequantize, quantize_blocks, quantize_weight, with_activations
from tiny import fresh, logits, stable_logits, tiny_tokens, write_logits

SIZES = dict(intermediate_size=64, num_hidden_layers=1)
Q = dict(GROUPED, **SIZES)
G = dict(GEMMA, **SIZES, head_dim=16)
T = dict(TINY, **SIZES)
OPT = {k: v for k, v in T.items() if k != "intermediate_size"} | dict(
    ffn_dim=64, word_embed_proj_dim=32
)
GROUP = 32

# name: (config, FP8 granularity or None)
CASES = {
    "gptq_qwen2": (Qwen2Config(**Q), None),
    "gptq_gemma2": (
        Gemma2Config(**G, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
        None,
    ),
    "gptq_granite": (GraniteConfig(**Q, **GRANITE, tie_word_embeddings=True), None),
    "gptq_phi3": (Phi3Config(**Q), None),
    "gptq_phi": (PhiConfig(**T), None),
    "gptq_starcoder2": (Starcoder2Config(**Q), None),
    "gptq_opt": (OPTConfig(**OPT), None),
    "gptq_gpt_neox": (GPTNeoXConfig(**T, rotary_pct=0.25), None),
    "fp8_qwen3_block": (Qwen3Config(**Q, head_dim=16), "block"),
    "fp8_phi3_parts": (Phi3Config(**Q), "part"),
    "fp8_gemma3_channel": (
        Gemma3TextConfig(**dict(G, num_hidden_layers=2), rope_parameters=GEMMA3_ROPE,
                         layer_types=["sliding_attention", "full_attention"]),
        "channel",
    ),
    "fp8_olmo2": (Olmo2Config(**Q), "tensor"),
    "fp8_opt": (OPTConfig(**OPT), "tensor"),
    "fp8_gpt_neox": (GPTNeoXConfig(**T, rotary_pct=0.25), "tensor"),
}  # fmt: skip


def words(codes, axis):
    """Eight 4-bit codes along `axis` -> one int32, the first in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    packed = (codes << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32))


def gptq(module, weight):
    """float32 (N, K) -> the tensors of a module, and the weight they hold."""
    n, k = weight.shape
    groups = weight.numpy().reshape(n, k // GROUP, GROUP)
    scale = (np.abs(groups).max(-1) / 7.5).astype(np.float16)  # (N, groups)
    wide = scale.astype(np.float32)[..., None]
    codes = np.clip(np.rint(groups / wide), -8, 7).astype(np.int8)
    tensors = {
        f"{module}.qweight": words((codes + 8).reshape(n, k).T, 0),
        f"{module}.qzeros": words(np.full((k // GROUP, n), 7), 1),
        f"{module}.scales": torch.from_numpy(np.ascontiguousarray(scale.T)),
        f"{module}.g_idx": torch.arange(k, dtype=torch.int32) // GROUP,
    }
    return tensors, torch.from_numpy((codes * wide).astype(np.float32).reshape(n, k))


def fp8(module, weight, granularity, parts):
    if granularity == "block":
        code, scale = quantize_blocks(weight)
        return {f"{module}.weight": code, f"{module}.weight_scale_inv": scale}, dequantize(
            code, scale
        )
    if granularity != "part" or not parts:
        kind = "tensor" if granularity == "part" else granularity
        code, scale = quantize_weight(weight, kind)
        return {f"{module}.weight": code, f"{module}.weight_scale": scale}, dequantize(code, scale)
    pieces = [quantize_weight(p, "tensor") for p in weight.split(parts)]
    code = torch.cat([p[0] for p in pieces])
    scale = torch.stack([p[1] for p in pieces])
    values = torch.cat([dequantize(*p) for p in pieces])
    return {f"{module}.weight": code, f"{module}.weight_scale": scale}, values


def parts_of(module, config):
    if module.endswith("qkv_proj"):
        head_dim = config.hidden_size // config.num_attention_heads
        q, kv = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        return [q, kv, kv]
    if module.endswith("gate_up_proj"):
        return [config.intermediate_size] * 2
    return []


def make(case):
    config, granularity = CASES[case]
    folder = fresh(GOLDEN / "architectures" / case)
    model = build(config, list(CASES).index(case) + 801)
    dtype = torch.float16 if granularity is None else torch.bfloat16
    for parameter in model.parameters():  # not the buffers, as to(dtype) would
        parameter.data = parameter.data.to(dtype).float()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tensors = {
        k: v.to(dtype)
        for k, v in model.state_dict().items()
        if not (k == "lm_head.weight" and config.tie_word_embeddings)
    }
    weights = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.data
        del tensors[f"{name}.weight"]
        made, values = (
            gptq(name, weight)
            if granularity is None
            else fp8(name, weight, granularity, parts_of(name, config))
        )
        tensors.update(made)
        module.weight.data = values
        weights[name] = values.numpy()
    if "lm_head.weight" in tensors and case.endswith("gpt_neox"):
        tensors["embed_out.weight"] = tensors.pop("lm_head.weight")  # its name in the files
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    document = json.loads((folder / "config.json").read_text())
    if granularity is None:
        document["quantization_config"] = dict(
            quant_method="gptq", bits=4, group_size=GROUP, sym=True, desc_act=False,
            checkpoint_format="gptq",
        )  # fmt: skip
    else:
        document["quantization_config"] = dict(
            quant_method="fp8", activation_scheme="dynamic", ignored_layers=["lm_head", "embed_out"]
        )
        if granularity == "block":
            document["quantization_config"]["weight_block_size"] = [128, 128]
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n")

    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(expected, weights, [])
    if granularity is None:
        tokens = tiny_tokens(12)
        answer = logits(model, tokens)
    else:
        kind = "block" if granularity == "block" else "token"
        tokens, answer, _ = stable_logits(
            with_activations(model, weights, kind, {}), functools.partial(tiny_tokens, 12), limit=5e-5
        )
    write_logits(expected, tokens=tokens, logits=answer)
    write_made_by(expected / "made_by.json", __file__, ["torch", "transformers"],
                  "Logits by transformers in float32 on the dequantized weights.")  # fmt: skip
    print(case, float(answer.std()))


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
