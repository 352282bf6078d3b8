"""Small folders for schemes with many dialects: a vocabulary of 96, eight tokens, no tokenizer.

A script quantizes the model's linears, and gives `write_case` the tensors to save, the exact float32
weights, and for each linear the function its input goes through.
"""

import copy

import numpy as np
import torch
from safetensors.torch import save_file

from common import write_expected_weights, write_made_by
from tiny import float_model, fresh, logits, stable_logits, tiny_config, write_logits

VOCABULARY = 96
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def slim_config(**changes):
    values = dict(
        num_hidden_layers=1, hidden_size=64, intermediate_size=96, vocab_size=VOCABULARY,
        max_position_embeddings=64, dtype=BF16, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    values.update(changes)
    return tiny_config(**values)


def slim_tokens(count=8, seed=7):
    return torch.from_numpy(np.random.default_rng(seed).integers(3, VOCABULARY, count))


def linears(model):
    return [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]


# Activations as the runtimes hold them, float32 in and out.


def to_e4m3(x):
    return x.clamp(-448, 448).to(E4M3).to(x.dtype)


def to_e2m1(x):
    """Round to nearest, ties to the even code; beyond 6 it is 6."""
    magnitude = x.abs().clamp(max=6)
    table = E2M1.to(x.dtype)
    middles = (table[:-1] + table[1:]) / 2
    code = torch.bucketize(magnitude, middles)  # a middle goes down
    tie = (magnitude == middles[code.clamp(max=6)]) & (code % 2 == 1)
    return table[code + tie.long()] * torch.sign(x)


def static_e4m3(scale):
    return lambda x: to_e4m3(x * (1 / scale.to(x.dtype))) * scale.to(x.dtype)


def static_s8(scale):
    return lambda x: (x / scale.to(x.dtype)).round().clamp(-128, 127) * scale.to(x.dtype)


def token_e4m3(bound=None):
    def run(x):
        most = x.abs().amax(-1, keepdim=True)
        most = most if bound is None else most.clamp(max=bound)
        scale = (most / 448).clamp(min=1 / (448 * 512))
        return to_e4m3(x * (1 / scale)) * scale

    return run


def token_s8(x):
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    return (x / scale).round().clamp(-128, 127) * scale


def grouped(x, group):
    """(T, K) -> (T, groups, group), padded with zeros, and the way back."""
    columns = x.shape[-1]
    parts = torch.nn.functional.pad(x, (0, -columns % group)).unflatten(-1, (-1, group))
    return parts, lambda y: y.flatten(-2)[..., :columns]


def group_e4m3(group):
    def run(x):
        parts, back = grouped(x, group)
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        return back(to_e4m3(parts * (1 / scale)) * scale)

    return run


def mx(group, round_to, largest):
    """Groups with a power of two, rounded up."""

    def run(x):
        parts, back = grouped(x, group)
        most = parts.abs().amax(-1, keepdim=True)
        exponent = (most.float() / largest).double().log2().ceil().clamp(min=-127)
        scale = torch.exp2(torch.where(most == 0, -127.0, exponent)).to(x.dtype)
        return back(round_to((parts * (1 / scale)).clamp(-largest, largest)) * scale)

    return run


def nvfp4(input_scale):
    """Groups of 16, their scales e4m3 times input_scale."""

    def run(x):
        parts, back = grouped(x, 16)
        second = input_scale.to(x.dtype)
        scale = to_e4m3(parts.abs().amax(-1, keepdim=True) / 6 / second)
        scale = torch.where(scale == 0, 0.125, scale) * second
        return back(to_e2m1(parts * (1 / scale)) * scale)

    return run


def group_s8(group):
    def run(x):
        parts, back = grouped(x, group)
        scale = (parts.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
        return back((parts / scale).round().clamp(-128, 127) * scale)

    return run


def after_factor(factor, run):
    return lambda x: run(x * factor.to(x.dtype))


def save_folder(folder, config, tensors, quantization):
    """model.safetensors and config.json with `quantization` as its quantization_config (or None)."""
    folder = fresh(folder)
    config = copy.deepcopy(config)
    if quantization is not None:
        config.quantization_config = quantization
    config.save_pretrained(folder)
    save_file(
        {k: v.contiguous() for k, v in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def write_expected(folder, config, tensors, weights, activations, script, packages, notes):
    """expected/ of a folder: CRCs of every weight, logits with the activations held as given.

    tensors: what is stored, {name: tensor}; those that are no part of the plain model are left out.
    weights: {module: float32 (N, K)}; activations: {module: function}, missing ones stay float32.
    """
    expected = folder / "expected"
    expected.mkdir(exist_ok=True)
    write_expected_weights(expected, {k: v.numpy() for k, v in weights.items()}, [])
    names = {f"{n}.weight" for n in weights}
    plain = {k: v for k, v in tensors.items() if v.dtype in (BF16, torch.float32, torch.float16)}
    state = {k: v for k, v in plain.items() if k.endswith(("norm.weight", "embed_tokens.weight"))}
    state.update({k: v for k, v in plain.items() if k.endswith((".weight", ".bias"))})
    state = {k: v for k, v in state.items() if k not in names}
    state.update({f"{k}.weight": v for k, v in weights.items()})
    model = float_model(config, state)
    for name, run in activations.items():
        module = model.get_submodule(name)
        module.register_forward_pre_hook(lambda _, inputs, run=run: (run(inputs[0]),))
    tokens, answer, spread = stable_logits(
        model, lambda **args: slim_tokens(**args) % config.vocab_size
    )
    write_logits(expected, tokens=tokens, logits=answer)
    write_made_by(expected / "made_by.json", script, packages, notes)
    print(folder.name, len(weights), "modules, logits", float(answer.std()), "spread", spread)
