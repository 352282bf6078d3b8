"""Writes tests/golden/gptq/: tiny Llamas quantized and saved by gptqmodel on a CPU.

Expected weights are gptqmodel's own dequantization of the saved folder, its scales widened to
float32 first, so that each weight is the exact float32 product of (code - zero) and scale. A second
decoder, written here from the format's description, must agree bit for bit.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig

from common import GOLDEN, write_expected_weights, write_json, write_made_by
from tiny import as_transformers_4, float_model, fresh, logits, save_tokenizer, tiny_config
from tiny import tiny_model, tiny_tokens, write_logits

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
# 192 is not a multiple of 128; group -1 is one group over all inputs.
RAGGED = dict(ONE, hidden_size=192, intermediate_size=192, num_attention_heads=6)
BASIC = dict(bits=4, group_size=32, sym=True, desc_act=False, offload_to_disk=False)
CHANNEL = dict(group_size=-1, act_group_aware=False)  # the tool asks for the second with the first
MIXED = {
    r"+:.*\.layers\.0\.self_attn\..*": {"bits": 8, "group_size": 64},
    r"-:.*\.layers\.1\.mlp\.down_proj.*": {},
    r".*\.layers\.1\.mlp\..*": {"bits": 2, "sym": False},
}
K_PROJ = "model.layers.0.self_attn.k_proj"

# name: (configuration changes, quantization changes, options)
CASES = {
    "b4_g32": ({}, dict(), {"v4": True, "full": [K_PROJ, "model.layers.1.self_attn.q_proj"]}),
    "b4_g64_biases": (dict(SMALL, attention_bias=True, mlp_bias=True), dict(group_size=64), {}),
    "b4_g128_bf16": (ONE, dict(group_size=128), {"dtype": torch.bfloat16}),
    "b4_channel": (SMALL, dict(CHANNEL), {"v4": True}),
    "b4_g64_ragged": (RAGGED, dict(group_size=64), {}),
    "b4_g128_ragged": (RAGGED, dict(group_size=128), {}),
    "b4_g32_asym": (SMALL, dict(sym=False), {"positive_rows": True}),
    "b4_g32_asym_v2": (SMALL, dict(sym=False, format="gptq_v2"), {"positive_rows": True}),
    "b4_g64_v2": (SMALL, dict(group_size=64, format="gptq_v2"), {}),
    "b2_g32": (SMALL, dict(bits=2), {}),
    "b2_g64_asym": (SMALL, dict(bits=2, group_size=64, sym=False), {"positive_rows": True}),
    "b3_g32": (SMALL, dict(bits=3), {}),
    "b3_g64_asym": (SMALL, dict(bits=3, group_size=64, sym=False), {"positive_rows": True}),
    "b3_g32_asym_v2": (SMALL, dict(bits=3, sym=False, format="gptq_v2"), {"positive_rows": True}),
    "b8_g64": (SMALL, dict(bits=8, group_size=64), {}),
    "b8_channel_asym": (SMALL, dict(CHANNEL, bits=8, sym=False), {"positive_rows": True}),
    "b4_g32_act": (ONE, dict(desc_act=True), {"v4": True}),
    "b4_g32_act_static": (SMALL, dict(desc_act=True, static_groups=True), {}),
    "b4_g64_act_asym": (SMALL, dict(desc_act=True, sym=False, group_size=64), {}),
    "b4_channel_act": (SMALL, dict(CHANNEL, desc_act=True), {}),
    "b3_g32_act": (SMALL, dict(bits=3, desc_act=True), {}),
    "b8_g32_act": (SMALL, dict(bits=8, desc_act=True), {}),
    "dynamic": (dict(SMALL, num_hidden_layers=2), dict(dynamic=MIXED), {}),
    "lm_head": (
        dict(SMALL, tie_word_embeddings=False),
        dict(lm_head=True),
        {"full": [K_PROJ, "lm_head"]},
    ),
    "sharded": (SMALL, dict(), {"shard": "30KB"}),
    "mistral": (dict(SMALL, sliding_window=8), dict(), {"mistral": True, "v4": True}),
}


def read_tensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensors[name] = file.get_tensor(name)
    return tensors


def unpack_words(words, bits, axis):
    """uint32 words holding little-endian fields of `bits` along `axis` -> one code per element."""
    words = np.moveaxis(np.ascontiguousarray(words).view(np.uint32), axis, -1)
    planes = (words[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    planes = planes.reshape(*words.shape[:-1], -1, bits).astype(np.int64)
    codes = (planes << np.arange(bits)).sum(-1)
    return np.moveaxis(codes, -1, axis)


def decode(tensors, module, bits, group_size, zeros_are_v2):
    """W[n, k] = (code[k, n] - zero[g, n]) * scale[g, n] with g = g_idx[k], in float32."""
    codes = unpack_words(tensors[f"{module}.qweight"].numpy(), bits, 0)  # (K, N)
    words = tensors[f"{module}.qzeros"].numpy()
    scales = tensors[f"{module}.scales"].float().numpy()  # (groups, N)
    mask = (1 << bits) - 1
    if zeros_are_v2:
        zeros = unpack_words(words, bits, 1)
    elif bits == 3:
        zeros = (unpack_words(words, 3, 1) + 1) & mask
    else:
        # Version 1 stores zero - 1, subtracted from the whole word; so add it to the whole word.
        ones = sum(1 << i for i in range(0, 32, bits))
        zeros = unpack_words((words.view(np.uint32) + np.uint32(ones)).view(np.int32), bits, 1)
    index = tensors[f"{module}.g_idx"].numpy()
    return ((codes - zeros[index]).astype(np.float32) * scales[index]).T


def tools_weights(folder):
    """gptqmodel's dequantization of every quantized module of a saved folder, scales in float32."""
    model = GPTQModel.load(
        str(folder), backend=BACKEND.GPTQ_TORCH, device="cpu", dtype=torch.float16
    )
    found = {}
    for name, module in model.model.named_modules():
        if hasattr(module, "qweight"):
            module.scales = module.scales.float()
            found[name] = (
                module.dequantize_weight().T.float().numpy(),
                module.bits,
                module.group_size,
            )
    return found


def quantize(folder, config, quantization, options, seed):
    dtype = options.get("dtype", torch.float16)
    model = tiny_model(config, seed)
    if options.get("positive_rows"):
        # Groups without negative weights have zero point 0, which version 1 of the format wraps.
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data[::11].abs_()
    # The tool leaves a folder of logs where it runs.
    with tempfile.TemporaryDirectory() as source, contextlib.chdir(source):
        model.to(dtype).save_pretrained(source)
        save_tokenizer(source)
        model = GPTQModel.load(source, QuantizeConfig(**quantization), dtype=dtype)
        rng = np.random.default_rng(seed)
        calibration = [rng.integers(3, config.vocab_size, 64).tolist() for _ in range(24)]
        calibration = [{"input_ids": ids, "attention_mask": [1] * 64} for ids in calibration]
        model.quantize(calibration, batch_size=4)
        model.save(str(folder), max_shard_size=options.get("shard"))
    (folder / "quant_log.csv").unlink(missing_ok=True)


def finish(folder, name, full, notes):
    """Expected weights and logits of a saved folder."""
    tensors = read_tensors(folder)
    config = AutoConfig.from_pretrained(folder)
    settings = json.loads((folder / "quantize_config.json").read_text())
    v2 = settings.get("checkpoint_format") == "gptq_v2"
    weights = {}
    for module, (weight, bits, group_size) in tools_weights(folder).items():
        own = decode(tensors, module, bits, group_size, v2)
        np.testing.assert_array_equal(own, weight, err_msg=f"{name} {module}")
        weights[module] = weight
    packed = {
        f"{module}.{part}"
        for module in weights
        for part in ("qweight", "qzeros", "scales", "g_idx")
    }
    state = {k: v for k, v in tensors.items() if k not in packed}
    state.update({f"{k}.weight": torch.from_numpy(v.copy()) for k, v in weights.items()})
    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(expected, weights, full)
    tokens = tiny_tokens()
    answer = logits(float_model(config, state), tokens)
    write_logits(expected, tokens=tokens, logits=answer)
    packages = ["gptqmodel", "torch", "transformers", "tokenizers"]
    write_made_by(expected / "made_by.json", __file__, packages, notes)
    print(name, len(weights), "modules, logits", float(answer.std()))


def make(name):
    changes, quantization, options = CASES[name]
    folder = fresh(GOLDEN / "gptq" / name)
    config = tiny_config(mistral=options.get("mistral", False), **changes)
    quantization = dict(BASIC, **quantization)
    quantize(folder, config, quantization, options, seed=list(CASES).index(name) + 101)
    notes = "Quantized and saved by gptqmodel; random token ids as calibration."
    if options.get("v4"):
        as_transformers_4(folder)
        notes += " config.json was rewritten with the keys of transformers 4."
    finish(folder, name, options.get("full", [K_PROJ]), notes)


# Keys of quantize_config.json as AutoGPTQ 0.2 wrote it.
OLD_KEYS = dict(
    bits=4, group_size=64, damp_percent=0.01, desc_act=False, static_groups=False, sym=True,
    true_sequential=True, model_name_or_path=None, model_file_base_name="gptq_model-4bit-64g",
)  # fmt: skip


def make_old():
    """The tensors of b4_g64_biases as AutoGPTQ 0.2 laid a folder out, and once as a torch file."""
    source = GOLDEN / "gptq" / "b4_g64_biases"
    for name, keep_g_idx in (("autogptq_old", True), ("no_g_idx", False)):
        folder = fresh(GOLDEN / "gptq" / name)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        (folder / "model.safetensors").unlink()
        tensors = read_tensors(source)
        base = OLD_KEYS["model_file_base_name"]
        if keep_g_idx:
            save_file(tensors, folder / f"{base}.safetensors", {"format": "pt"})
        else:
            tensors = {k: v for k, v in tensors.items() if not k.endswith(".g_idx")}
            torch.save(tensors, folder / f"{base}.bin")
        if keep_g_idx:
            as_transformers_4(folder)
            path = folder / "config.json"
            config = json.loads(path.read_text())
            del config["quantization_config"]
            write_json(path, config)
            write_json(folder / "quantize_config.json", OLD_KEYS)
            notes = "The tensors of b4_g64_biases as AutoGPTQ 0.2 laid a folder out."
        else:
            (folder / "quantize_config.json").unlink()
            notes = "The tensors of b4_g64_biases less g_idx, as the first GPTQ files had them, in a torch file."
        packages = ["gptqmodel", "safetensors"]
        write_made_by(folder / "expected" / "made_by.json", __file__, packages, notes)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
    if not sys.argv[1:]:
        make_old()
