"""A folder that transformers can open in float32, and its activations as a quantized one would hold
them.
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import golden  # noqa: F401
from make_fp8 import with_activations


def open_model(folder, activations=None):
    """A float32 model of `folder`; with `activations`, a quantized folder whose scheme they follow.

    Only FP8 folders quantize activations here: per tensor and static, per token, or per token and
    128 columns when the weights are in blocks.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    if activations:
        from safetensors import safe_open

        config = json.loads((pathlib.Path(activations) / "config.json").read_text())[
            "quantization_config"
        ]
        granularity = "block" if config.get("weight_block_size") else "tensor"
        names, static = [], {}
        for path in sorted(pathlib.Path(activations).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                keys = file.keys()
                names += [
                    k.rsplit(".", 1)[0]
                    for k in keys
                    if k.endswith((".weight_scale", ".weight_scale_inv"))
                ]
                static.update(
                    {
                        k.rsplit(".", 1)[0]: file.get_tensor(k)
                        for k in keys
                        if k.endswith(".input_scale")
                    }
                )
        with_activations(model, names, granularity, static)
    return model


def encode_file(folder, path):
    """Ids of the whole text, special tokens as the tokenizer adds them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return torch.tensor(tokenizer.encode(pathlib.Path(path).read_text(encoding="utf-8")))


@torch.no_grad()
def window_logits(model, tokens):
    return model(tokens[None]).logits[0]
