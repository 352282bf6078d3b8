"""Reads and writes the Hugging Face folders that the quantize_*.py scripts pass on."""

import json
import pathlib
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SIDE_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
]


def read_state(folder):
    state = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            state.update({k: file.get_tensor(k) for k in file.keys()})
    return state


def write_folder(source, folder, state, dtype, quantization_config=None):
    """`state` as one file, the configuration and tokenizer of `source` beside it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in state.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((pathlib.Path(source) / "config.json").read_text())
    config["torch_dtype"] = dtype
    config.pop("quantization_config", None)
    if quantization_config:
        config["quantization_config"] = quantization_config
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in SIDE_FILES:
        if (pathlib.Path(source) / name).exists():
            shutil.copy(pathlib.Path(source) / name, folder / name)


def write_dequantized(source, folder, weights, state):
    """The sibling FOLDER-dequantized: float32, with the tool's own weights {module: (out, in)}."""
    packed = (
        ".qweight",
        ".qzeros",
        ".scales",
        ".g_idx",
        ".weight_scale",
        ".weight_scale_inv",
        ".input_scale",
    )
    plain = {k: v.float() for k, v in state.items() if not k.endswith(packed)}
    plain.update({f"{k}.weight": torch.as_tensor(v).float() for k, v in weights.items()})
    write_folder(source, f"{folder}-dequantized", plain, "float32")
