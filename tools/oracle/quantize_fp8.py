"""A float folder -> FP8 (quant_method fp8) per tensor, per channel or in blocks, and its
dequantized sibling.

usage: quantize_fp8.py SOURCE FOLDER tensor|channel|block [TEXT]

With TEXT (for `tensor`), input scales are static: amax / 448 of each linear's input over that text.
Without, activations are dynamic. Formulas: tools/golden/make_fp8.py. FOLDER-dequantized holds the
float32 products of code and scale.
"""

import sys

import golden  # noqa: F401
import torch
from make_fp8 import BF16, FineGrainedFP8Config, dequantize, quantize_blocks, quantize_weight
from model import encode_file, open_model, window_logits

from folders import write_dequantized, write_folder


def static_scales(model, source, names, text):
    seen = dict.fromkeys(names, 0.0)

    def watch(name):
        def hook(_, inputs):
            seen[name] = max(seen[name], float(inputs[0].abs().max()))

        return hook

    for name in names:
        model.get_submodule(name).register_forward_pre_hook(watch(name))
    for window in encode_file(source, text).split(512):
        window_logits(model, window)
    return {name: torch.tensor(value / 448) for name, value in seen.items()}


def main(source, folder, granularity, text=None):
    model = open_model(source)
    names = [
        n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"
    ]
    static = static_scales(model, source, names, text) if text else {}
    state = {k: v.to(BF16) for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    weights = {}
    for name in names:
        weight = state[f"{name}.weight"].float()
        if granularity == "block":
            code, scale = quantize_blocks(weight)
        else:
            code, scale = quantize_weight(weight, granularity)
        state[f"{name}.weight"] = code
        state[f"{name}.weight_scale" + ("_inv" if granularity == "block" else "")] = scale
        if name in static:
            state[f"{name}.input_scale"] = static[name]
        weights[name] = dequantize(code, scale)
    config = {"quant_method": "fp8", "activation_scheme": "static" if text else "dynamic"}
    if granularity == "block":
        config["weight_block_size"] = list(FineGrainedFP8Config().weight_block_size)
    else:
        config["ignored_layers"] = ["lm_head"]
    write_folder(source, folder, state, "bfloat16", config)
    write_dequantized(source, folder, weights, state)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    with torch.no_grad():
        main(*sys.argv[1:])
