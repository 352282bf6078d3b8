"""Adds to tests/golden/compressed_tensors/ what compressed-tensors no longer writes: act-order with
weight_g_idx, codes of 3, 5, 6 and 7 bits in whole words, 2:4 sparsity as a bit mask and as marlin-24.

Needs compressed-tensors 0.12.2 (`pip install --no-deps`). Its compressors write each layer; the rest
of a folder, config.json included, is put together here as its ModelCompressor did. It could not undo
packed zero points nor marlin-24: there the expected weights are the quantized values before packing,
times their scales.
"""

import json
import re
import sys

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
    PackedQuantizationCompressor,
)
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import (
    Sparse24BitMaskTensor,
)
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskTensor
from compressed_tensors.compressors.sparse_quantized_compressors.marlin_24 import (
    Marlin24Compressor,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import AutoConfig

from common import GOLDEN, write_expected_weights, write_made_by
from slim import VOCABULARY, slim_tokens
from tiny import as_transformers_4, float_model, fresh, logits, tiny_config, tiny_model
from tiny import write_logits

BF16, F16 = torch.bfloat16, torch.float16
TINY = dict(
    num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=VOCABULARY, architectures=["LlamaForCausalLM"],
)  # fmt: skip
# marlin-24 has tiles of 64 outputs; 512 inputs keep 256, more than a group of 128.
WIDE = dict(TINY, hidden_size=64, intermediate_size=512, num_key_value_heads=2, head_dim=32)
K_PROJ = "model.layers.0.self_attn.k_proj"
ATTENTION, MLP = ["re:.*_attn.*_proj$"], ["re:.*mlp.*_proj$"]


def integers(bits, group, symmetric=True, **more):
    strategy = "channel" if group == -1 else "group"
    out = dict(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, **more)
    return dict(out, group_size=group) if group > 0 else out


FP8 = dict(num_bits=8, type="float", strategy="channel")
PART = "re:.*{}_proj$"
# name: (model, format, {targets: weights}, options)
CASES = {
    "old_act_order": (TINY, "pack-quantized", [(["Linear"], integers(4, 16, actorder="group"))], {}),
    "old_act_order_asym": (
        TINY, "pack-quantized", [(["Linear"], integers(8, 16, False, actorder="group"))], {}),
    "old_whole_words": (
        TINY, "pack-quantized",
        [([PART.format("q")], integers(3, 16)), ([PART.format("k")], integers(6, -1)),
         ([PART.format("v")], integers(7, 16)), ([PART.format("o")], integers(5, 16, False)),
         (MLP, integers(3, -1, False))], {}),
    "old_sparse24": (dict(TINY, tie_word_embeddings=False), "dense", [], {"sparse": Sparse24BitMaskTensor}),
    "old_sparse24_fp8": (TINY, "float-quantized", [(["Linear"], FP8)], {"sparse": Sparse24BitMaskTensor}),
    "old_sparse_any": (TINY, "float-quantized", [(MLP, FP8)], {"sparse": BitmaskTensor}),
    "old_marlin24": (
        WIDE, "marlin-24",
        [([PART.format("down")], integers(4, 128)), (MLP, integers(4, -1)),
         (ATTENTION, integers(8, -1))], {"prune": True}),
}  # fmt: skip
SEEDS = {name: seed for seed, name in enumerate(sorted(CASES, key="old_sparse_any".__eq__), 801)}


def prune(weight):
    """The two largest of every four inputs stay."""
    fours = weight.reshape(-1, 4)
    keep = torch.zeros_like(fours, dtype=torch.bool).scatter_(1, fours.abs().topk(2, 1).indices, True)
    return torch.where(keep, fours, 0).reshape(weight.shape)


def scales(weight, args, g_idx=None):
    x = weight.float() if g_idx is None else weight.float()[:, torch.argsort(g_idx)]
    if args.strategy == "group":
        x = x.unflatten(1, (-1, args.group_size))
        low, high = x.amin(-1), x.amax(-1)
    else:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return calculate_qparams(low, high, args)


def pack(weight, args, seed):
    """One layer by PackedQuantizationCompressor; and its exact weight."""
    g_idx = None
    if args.actorder == "group":
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(seed))
        g_idx = torch.empty_like(order, dtype=torch.int32)
        g_idx[order] = torch.arange(len(order), dtype=torch.int32) // args.group_size
    scale, zero = scales(weight, args, g_idx)
    scale = scale.to(BF16)
    out = PackedQuantizationCompressor().compress_weight(weight, scale, args, zero, g_idx)
    out["weight_scale"] = scale
    if g_idx is not None:
        out["weight_g_idx"] = g_idx
    codes = quantize(weight, scale, zero, args, torch.int8, g_idx)
    exact = dequantize(codes.float(), scale.float(), zero, args, g_idx=g_idx)
    return out, exact


def prune_any(weight):
    """Every third input stays; of the first output all, of the second none."""
    keep = weight.abs() >= weight.abs().flatten().kthvalue(weight.numel() * 2 // 3).values
    keep[0], keep[1] = True, False
    return torch.where(keep, weight, 0)


def mask(weight, args, compressor):
    """One layer by the compressor, of its codes when it is quantized."""
    out = {}
    if args is not None:
        scale, zero = scales(weight, args)
        scale = scale.to(BF16)
        out["weight_scale"] = scale
        weight = quantize(weight, scale, zero, args, torch.float8_e4m3fn)
    sparse = compressor.from_dense(weight)
    exact = sparse.decompress().float()
    if args is not None:
        exact = exact * scale.float()
    out.update(sparse.dict(name_prefix="w"))
    return {k.removeprefix("w."): v for k, v in out.items()}, exact


def marlin24(weight, args):
    scale, zero = scales(weight, args)
    scale = scale.to(F16)
    out = Marlin24Compressor().compress(
        {"w.weight": weight, "w.weight_scale": scale, "w.weight_zero_point": zero},
        {"w": QuantizationScheme(targets=["Linear"], weights=args)},
    )
    codes = quantize(weight.to(F16), scale, zero, args).to(torch.int8)  # no -0
    exact = dequantize(codes.float(), scale.float(), zero, args)
    return {k.removeprefix("w."): v for k, v in out.items()}, exact


def compress(model, form, groups, options):
    args = [QuantizationArgs(**weights) for _, weights in groups]
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    if not model.config.tie_word_embeddings:
        tensors["lm_head.weight"] = model.lm_head.weight.data
    weights = {}
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    for seed, name in enumerate(n for n in linear if n != "lm_head"):
        weight = tensors.pop(f"{name}.weight")
        own = next((a for a, (targets, _) in zip(args, groups)
                    if targets == ["Linear"] or re.match(targets[0][3:], name)), None)  # fmt: skip
        if options.get("sparse") == BitmaskTensor:
            weight = prune_any(weight)
        elif options:
            weight = prune(weight)
        if form == "marlin-24":
            out, exact = marlin24(weight, own)
        elif options.get("sparse"):
            out, exact = mask(weight, own, options["sparse"])
        else:
            out, exact = pack(weight, own, seed)
        tensors.update({f"{name}.{k}": v for k, v in out.items()})
        weights[name] = exact
    return tensors, weights


def quantization_config(form, groups, options):
    config = {"version": "0.12.2", "quant_method": "compressed-tensors", "sparsity_config": {},
              "transform_config": {}}  # fmt: skip
    if options.get("sparse"):
        config["sparsity_config"] = {
            "format": "sparse-24-bitmask", "global_sparsity": 0.5, "ignore": ["lm_head"],
            "registry_requires_subclass": False, "sparsity_structure": "2:4", "targets": ["Linear"],
        }  # fmt: skip
        if options["sparse"] == BitmaskTensor:
            config["sparsity_config"].update(
                format="sparse-bitmask", sparsity_structure="unstructured"
            )
    if not groups:
        return config
    made = QuantizationConfig(
        config_groups={
            f"group_{i}": QuantizationScheme(targets=targets, weights=weights)
            for i, (targets, weights) in enumerate(groups)
        },
        ignore=["lm_head"],
        format=form,
        quantization_status="compressed",
    ).model_dump(exclude=["quant_method"])
    return {**config, **made}


def make(name):
    changes, form, groups, options = CASES[name]
    folder = fresh(GOLDEN / "compressed_tensors" / name)
    config = tiny_config(dtype=BF16, **changes)
    model = tiny_model(config, seed=SEEDS[name]).to(BF16)
    tensors, weights = compress(model, form, groups, options)
    save_file(
        {k: v.clone().contiguous() for k, v in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config.save_pretrained(folder)
    as_transformers_4(folder)
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    whole["quantization_config"] = quantization_config(form, groups, options)
    path.write_text(json.dumps(whole, indent=1, sort_keys=True, default=str) + "\n")

    expected = folder / "expected"
    expected.mkdir()
    write_expected_weights(expected, {k: v.numpy() for k, v in weights.items()}, [K_PROJ])
    state = {k: v for k, v in model.state_dict().items()
             if k.rpartition(".")[0] not in weights}  # fmt: skip
    state.update({f"{k}.weight": v for k, v in weights.items()})
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tokens = slim_tokens(16)
    answer = logits(float_model(AutoConfig.from_pretrained(folder), state), tokens)
    write_logits(expected, tokens=tokens, logits=answer)
    packages = ["compressed-tensors", "torch", "transformers"]
    write_made_by(expected / "made_by.json", __file__, packages, "")
    print(name, len(weights), "modules, logits", float(answer.std()))


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
