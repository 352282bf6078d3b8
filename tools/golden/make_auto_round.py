"""Writes tests/golden/auto_round/: tiny Llamas quantized and saved by auto-round on a CPU.

iters=0 is its round-to-nearest with its own search for scales; random token ids calibrate. Expected
weights of packed integers come from the decoders in make_gptq.py and below, written from the
description of the layouts; the layers that auto-round itself loads give the same within the rounding
of its float16 products. FP8 weights are code times scale.
"""

import json
import os
import shutil
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import torch
from auto_round import AutoRound
from auto_round.data_type.mxfp import MXFP_FORMAT_CACHE, qdq_mxfp
from safetensors import safe_open
from transformers import AutoTokenizer, LlamaForCausalLM

from common import GOLDEN
from quantized import K_PROJ, write_expected
from slim import nvfp4
from tiny import as_transformers_4, fresh, save_tokenizer, tiny_config, tiny_model

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
TINY = dict(
    ONE, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1
)  # fmt: skip
RAGGED = dict(ONE, hidden_size=96, intermediate_size=160, num_attention_heads=4)
GATE = "model.layers.0.mlp.gate_proj"
MIXED = {  # exact names, a regular expression, and a layer left alone
    "model.layers.0.self_attn.q_proj": {"bits": 8, "group_size": 64},
    "model.layers.0.self_attn.k_proj": {"bits": 2, "sym": False},
    "model.layers.0.mlp.down_proj": {"bits": 16},
    "mlp.up_proj": {"bits": 3},
}

# name: (configuration changes, arguments of AutoRound, format, options)
CASES = {
    "w4_sym": (SMALL, dict(bits=4, group_size=32), "auto_round", {}),
    "w4_asym_awq": (SMALL, dict(bits=4, group_size=32, sym=False), "auto_round", {}),
    "w4_asym_gptq": (
        SMALL, dict(bits=4, group_size=64, sym=False), "auto_round:auto_gptq", {"old": "0.4"},
    ),
    "w4_asym_gptqmodel": (
        SMALL, dict(bits=4, group_size=32, sym=False), "auto_round:gptqmodel", {},
    ),
    "w2_asym_own": (SMALL, dict(bits=2, group_size=32, sym=False), "auto_round", {}),
    "w3_ragged": (  # k_proj and v_proj have 48 outputs: left alone by the tool
        RAGGED, dict(bits=3, group_size=64, sym=False), "auto_round", {"full": [GATE]},
    ),
    "w6_asym": (SMALL, dict(bits=6, group_size=64, sym=False), "auto_round", {}),
    "mixed": (
        dict(SMALL, num_hidden_layers=2), dict(bits=4, group_size=32, layer_config=MIXED),
        "auto_round", {"full": [K_PROJ, "model.layers.1.mlp.up_proj"]},
    ),
    "fp8_static": (SMALL, dict(scheme="FP8_STATIC"), "auto_round", {"input": "static"}),
    "fp8_block": (
        dict(ONE, hidden_size=64, intermediate_size=160), dict(scheme="FP8_BLOCK"), "auto_round",
        {"input": "block"},
    ),
    "mxfp4": (SMALL, dict(scheme="MXFP4"), "auto_round", {"input": "mx"}),
    "nvfp4": (TINY, dict(scheme="NVFP4"), "auto_round", {"full": []}),
    "as_auto_gptq": (SMALL, dict(bits=4, group_size=32), "auto_gptq", {}),
    "as_auto_awq": (SMALL, dict(bits=4, group_size=32, sym=False), "auto_awq", {}),
}  # fmt: skip


def unpack(words, bits, axis):
    """Little-endian fields of `bits` along `axis` of 32-bit words -> one code per element."""
    words = np.moveaxis(np.ascontiguousarray(words).view(np.uint32), axis, -1)
    planes = (words[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    planes = planes.reshape(*words.shape[:-1], -1, bits).astype(np.int64)
    return np.moveaxis((planes << np.arange(bits)).sum(-1), -1, axis)


def integer_weight(tensors, name, bits, group, packing, columns):
    code, zero = (tensors[f"{name}.{part}"].numpy() for part in ("qweight", "qzeros"))
    scale = tensors[f"{name}.scales"].float().numpy()
    if "awq" in packing:
        order = [0, 4, 1, 5, 2, 6, 3, 7]  # the field in which output 8 c + i lies
        code, zero = (
            unpack(w, 4, 1).reshape(len(w), -1, 8)[:, :, order].reshape(len(w), -1)
            for w in (code, zero)
        )
    else:
        code, zero = unpack(code, bits, 0), unpack(zero, bits, 1)
        if "gptq" in packing and "gptqmodel" not in packing:
            zero = zero + 1
    index = np.arange(columns) // (columns if group == -1 else group)
    return torch.from_numpy(((code - zero[index]).astype(np.float32) * scale[index]).T.copy())


def fp8_inputs(kind, tensors, name):
    def to_float8(x):
        return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)

    def quantize(x):
        if kind == "static":
            scale = tensors[f"{name}.input_scale"].to(x.dtype)
        else:
            columns = x.shape[-1]
            groups = torch.nn.functional.pad(x, (0, -columns % 128)).unflatten(-1, (-1, 128))
            scale = groups.abs().amax(-1).clamp(min=1e-10) / 448
            scale = scale.repeat_interleave(128, -1)[..., :columns]
        return to_float8(x * (1 / scale)) * scale

    return quantize


def mx_inputs(x):
    """The tool's own rounding of inputs to e2m1 in groups of 32, scales 2^floor(log2(absmax)) / 4."""
    ebits, mbits, emax, largest, _ = MXFP_FORMAT_CACHE["mx_fp4"]
    groups = x.unflatten(-1, (-1, 32))
    most = groups.abs().amax(-1, keepdim=True)
    return qdq_mxfp(groups, most, largest, emax, ebits, mbits).flatten(-2)


def as_old(folder, version):
    """The keys that auto-round 0.4 wrote beside those of today."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    quantization = config["quantization_config"]
    quantization.update(
        autoround_version=version, iters=200, lr=0.005, minmax_lr=0.005, nsamples=128, seqlen=2048,
        low_gpu_mem_usage=False, enable_minmax_tuning=True, enable_quanted_input=True,
        scale_dtype="torch.float16", dataset="NeelNanda/pile-10k", gradient_accumulate_steps=1,
        not_use_best_mse=False,
    )  # fmt: skip
    path.write_text(json.dumps(config, indent=2) + "\n")


def quantize(folder, config, arguments, layout, seed):
    model = tiny_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    data = [{"input_ids": torch.randint(3, 288, (32,), generator=generator)} for _ in range(8)]
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as made:
        model.half().save_pretrained(source)
        save_tokenizer(source)
        model = LlamaForCausalLM.from_pretrained(source, dtype=torch.float16)
        tool = AutoRound(
            model, AutoTokenizer.from_pretrained(source), iters=0, device_map="cpu", nsamples=8,
            seqlen=32, dataset=torch.utils.data.DataLoader(data, batch_size=4), **arguments,
        )  # fmt: skip
        tool.quantize_and_save(made, format=layout)
        for directory, _, files in os.walk(made):
            for name in files:
                if name != "quantization_config.json":
                    shutil.copy(os.path.join(directory, name), folder / name)


def make(name):
    changes, arguments, layout, options = CASES[name]
    scheme = {"auto_gptq": "gptq", "auto_awq": "awq"}.get(layout, "auto_round")
    folder = fresh(GOLDEN / scheme / (name if scheme == "auto_round" else "by_auto_round"))
    config = tiny_config(dtype=torch.float16, **changes)
    quantize(folder, config, arguments, layout, list(CASES).index(name) + 501)
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    packing = settings.get("packing_format", layout)
    weights, inputs = {}, {}
    for key, value in tensors.items():
        module = key.rsplit(".", 1)[0]
        if key.endswith(".qweight"):
            columns = config.intermediate_size if "down" in module else config.hidden_size
            rows = tensors[f"{module}.scales"].shape[1]
            bits = 4 if "awq" in packing else value.shape[0] * 32 // columns
            groups = tensors[f"{module}.scales"].shape[0]
            group = settings["group_size"]
            if "q_proj" in module and name == "mixed" and "layers.0" in module:
                group = 64
            assert groups == -(-columns // (columns if group == -1 else group)), module
            weights[module] = integer_weight(tensors, module, bits, group, packing, columns)
            assert weights[module].shape == (rows, columns)
        elif key.endswith(".weight_packed"):
            grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            grid = torch.cat([grid, -grid])
            code = torch.stack([value & 15, value >> 4], -1).flatten(1).long()
            scale = tensors[f"{module}.weight_scale"]
            if scale.dtype == torch.uint8:
                scale = torch.pow(2.0, scale.float() - 127)
                weights[module] = grid[code] * scale.repeat_interleave(32, 1)
                inputs[module] = mx_inputs
            else:
                scale = scale.float() / tensors[f"{module}.weight_global_scale"]
                weights[module] = grid[code] * scale.repeat_interleave(16, 1)
                inputs[module] = nvfp4(1 / tensors[f"{module}.input_global_scale"])
        elif key.endswith(".weight") and value.dtype == torch.float8_e4m3fn:
            scale = tensors.get(f"{module}.weight_scale")
            if scale is not None:
                weights[module] = value.float() * scale.float()[:, None]
            else:
                scale = tensors[f"{module}.weight_scale_inv"].float()
                scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
                weights[module] = value.float() * scale[: value.shape[0], : value.shape[1]]
            inputs[module] = fp8_inputs(options["input"], tensors, module)
    if options.get("old"):
        as_old(folder, options["old"])
    if options.get("v4"):
        as_transformers_4(folder)
    notes = f"Quantized and saved by auto-round, format {layout}."
    if options.get("old"):
        notes += f" config.json was rewritten with the keys of auto-round {options['old']}."
    write_expected(
        folder, tensors, weights, __file__, ["auto-round", "torch", "transformers"], notes,
        full=options.get("full", [K_PROJ]), inputs=inputs,
    )  # fmt: skip


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
