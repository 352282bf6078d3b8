"""Shared by the scripts that quantize a tiny model layer by layer: saving, expected weights, logits."""

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from common import write_expected_weights, write_made_by
from tiny import as_transformers_4, float_model, logits, save_tokenizer, stable_logits
from tiny import tiny_tokens, write_logits

K_PROJ = "model.layers.0.self_attn.k_proj"


def linear_names(model, skip=()):
    """The linear layers of a model but for its head and those that `skip` names whole."""
    return [
        n
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and n != "lm_head" and n not in skip
    ]


def float_tensors(model, config, dtype):
    tensors = {k: v.to(dtype) for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


def save_checkpoint(folder, config, tensors, quantization, v4=False):
    save_file(
        {k: v.contiguous().clone() for k, v in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config.quantization_config = quantization
    config.save_pretrained(folder)
    save_tokenizer(folder)
    if v4:
        as_transformers_4(folder)


def write_expected(folder, tensors, weights, script, packages, notes, full=(K_PROJ,), inputs=None):
    """expected/: `weights` {module: float32 (N, K)} replace all of a module's tensors but its bias.

    inputs: {module: function of x}, what the checkpoint does to a layer's inputs.
    """
    expected = folder / "expected"
    expected.mkdir(exist_ok=True)
    write_expected_weights(expected, {k: v.numpy() for k, v in weights.items()}, list(full))
    prefixes = tuple(f"{k}." for k in weights)
    state = {k: v for k, v in tensors.items() if not k.startswith(prefixes) or k.endswith(".bias")}
    state.update({f"{k}.weight": v for k, v in weights.items()})
    model = float_model(AutoConfig.from_pretrained(folder), state)
    if inputs:
        plain = logits(model, tiny_tokens())
        for name, function in inputs.items():
            model.get_submodule(name).register_forward_pre_hook(
                lambda _, x, function=function: (function(x[0]),)
            )
        tokens, answer, spread = stable_logits(model)
        notes += (
            " Tokens chosen so that no activation lies near a rounding boundary: float64 runs "
            f"differ by at most {spread:.2g}."
        )
        print("  activations move logits by", float((logits(model, tiny_tokens()) - plain).abs().max()))
    else:
        tokens = tiny_tokens()
        answer = logits(model, tokens)
    write_logits(expected, tokens=tokens, logits=answer)
    write_made_by(expected / "made_by.json", script, packages, notes)
    print(folder.name, len(weights), "modules, logits", float(answer.std()))
