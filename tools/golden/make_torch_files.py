"""Writes the golden folders whose weights torch.save wrote: hqq/saved*, unquantized/torch_sharded.

hqq/saved is what AutoHQQHFModel.save_quantized of hqq writes. hqq/saved_old* are the layers of hqq
0.1.7 (its dict in qmodel.pt), with zero points that are 8-bit codes, scales too, and both in one
tensor; run with PYTHONPATH at the unpacked hqq-0.1.7.tar.gz. Expected weights are hqq's own
dequantization with scales and zeros widened to float32.
"""

import copy
import json
import sys
import types

import torch

from common import GOLDEN, write_made_by
from slim import fresh, linears, slim_config, slim_tokens, write_expected
from tiny import float_model, logits, tiny_model, write_logits

# Old hqq keeps streams of a card, also on a CPU.
torch.cuda.Stream = lambda *_: types.SimpleNamespace(synchronize=lambda: None)
torch.cuda.empty_cache = lambda: None

OLD = {
    "saved_old": dict(nbits=4, group_size=64),  # the defaults of 2024: axis 0, quant_zero
    "saved_old_offload": dict(nbits=2, group_size=16, axis=1, offload_meta=True),
}


def hqq_model(seed):
    config = slim_config(dtype=torch.float16)
    return config, tiny_model(config, seed=seed).to(torch.float16)


def finish(folder, config, model, weights, notes):
    tensors = model.state_dict()
    packages = ["hqq", "torch", "transformers"]
    write_expected(folder, config, tensors, weights, {}, __file__, packages, notes)


def float_weight(layer, Quantizer):
    """The layer's weight with scale and zero widened to float32."""
    meta = dict(layer.meta)
    for level in ("zero", "scale"):
        if "zero_scale" in meta and meta["zero_scale"].dtype == torch.uint8:
            meta[f"{level}_q"] = meta["zero_scale"][0 if level == "zero" else 1]
        if meta.get(f"quant_{level}"):
            meta[level] = Quantizer.dequantize(meta[f"{level}_q"], meta[f"meta_{level}"])
    meta.update(scale=meta["scale"].float(), zero=meta["zero"].float(), compute_dtype=torch.float32)
    return Quantizer.dequantize(layer.W_q, meta).float().detach()


def make_hqq_old(name):
    from hqq.core import quantize

    folder = fresh(GOLDEN / "hqq" / name)
    config, model = hqq_model(list(OLD).index(name) + 651)
    weights, saved = {}, {}
    for module, part in model.named_modules():
        if list(part.children()) or not part.state_dict():
            continue
        saved[module] = dict(part.state_dict())
        if module not in linears(model):
            continue
        layer = quantize.HQQLinear(
            copy.deepcopy(part), quantize.BaseQuantizeConfig(**OLD[name]),
            compute_dtype=torch.float16, device="cpu", initialize=False,
        )  # fmt: skip
        layer.cuda = types.MethodType(on_cpu, layer)
        layer.initialize()
        saved[module] = layer.state_dict()
        weights[module] = float_weight(layer, quantize.Quantizer)
    config.save_pretrained(folder)
    torch.save(saved, folder / "qmodel.pt")
    finish(folder, config, model, weights, "The layers of hqq 0.1.7, on a CPU.")


def on_cpu(layer, device):
    """What HQQLinear.cuda of 0.1.7 does to the tensors, without a card."""
    half = torch.float16
    for level in ("zero", "scale"):
        if layer.meta[f"quant_{level}"]:
            second = layer.meta[f"meta_{level}"]
            second.update(scale=second["scale"].to(half), zero=second["zero"].to(half))
        else:
            layer.meta[level] = layer.meta[level].to(half)
    if layer.offload_meta:
        layer.meta["zero_scale"] = torch.stack((layer.meta.pop("zero_q"), layer.meta.pop("scale_q")))


def make_hqq():
    from hqq.core.quantize import BaseQuantizeConfig, Quantizer
    from hqq.models.hf.base import AutoHQQHFModel

    folder = fresh(GOLDEN / "hqq" / "saved")
    config, model = hqq_model(650)
    plain = copy.deepcopy(model)
    quantized = BaseQuantizeConfig(nbits=4, group_size=64, axis=1)
    AutoHQQHFModel.quantize_model(model, quantized, compute_dtype=torch.float16, device="cpu")
    AutoHQQHFModel.save_quantized(model, str(folder))
    weights = {n: float_weight(model.get_submodule(n), Quantizer) for n in linears(plain)}
    finish(folder, config, plain, weights, "hqq's save_quantized.")


def make_unquantized():
    """Two shards with an index; a tied head that shares bytes, a weight stored transposed."""
    config = slim_config(intermediate_size=32, tie_word_embeddings=True)
    state = tiny_model(config, seed=660).to(torch.bfloat16).state_dict()
    key = "model.layers.0.mlp.up_proj.weight"
    state[key] = state[key].t().contiguous().t()
    folder = fresh(GOLDEN / "unquantized" / "torch_sharded")
    config.save_pretrained(folder)
    files = [f"pytorch_model-0000{i + 1}-of-00002.bin" for i in range(2)]
    where = {name: files["mlp" in name] for name in state}
    for file in files:
        torch.save({k: v for k, v in state.items() if where[k] == file}, folder / file)
    size = sum(v.nbytes for v in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "expected").mkdir()
    tokens = slim_tokens()
    whole = float_model(config, {k: v for k, v in state.items() if k != "lm_head.weight"})
    write_logits(folder / "expected", tokens=tokens, logits=logits(whole, tokens))
    packages, notes = ["torch", "transformers"], "Saved with torch.save."
    write_made_by(folder / "expected" / "made_by.json", __file__, packages, notes)


CASES = {"hqq": make_hqq, "unquantized": make_unquantized}
CASES.update({name: lambda name=name: make_hqq_old(name) for name in OLD})

if __name__ == "__main__":
    for case in sys.argv[1:] or ["hqq", "unquantized"]:
        CASES[case]()
