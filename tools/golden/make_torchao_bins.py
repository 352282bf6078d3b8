"""Tensor subclasses of torchao as torch.save writes them, for src/checkpoint/golden_test.cc.

    python make_torchao_bins.py new     # requirements.txt and torchao 0.18.0
    python make_torchao_bins.py old     # the same with torchao 0.9.0 (PYTHONPATH, --no-deps)

Writes tests/golden/checkpoint/torchao (two shards with an index) and torchao_old (one file, with the
AffineQuantizedTensor of its time). expected.json has every tensor that the files hold, its bytes in
hex, and for each parameter the JSON that torchao's safetensors writer puts into a header, here written
from the objects themselves: the whole state in its order, then dtype and shape.
"""

import dataclasses
import enum
import json
import sys
import types

import torch
import torchao

from common import GOLDEN, write_made_by
from slim import fresh

N, K = 4, 64


def weight(seed, dtype=torch.bfloat16):
    torch.manual_seed(seed)
    return torch.randn(N, K).to(dtype)


def quantized(config, seed, dtype=torch.bfloat16):
    from torchao.quantization import quantize_

    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False))
    model[0].weight = torch.nn.Parameter(weight(seed, dtype))
    quantize_(model, config)
    return model.state_dict()["0.weight"]


def new_parameters():
    """What a CPU can make of the tensors of 0.18; Int4Tensor is put together here, its kernel is not."""
    from torchao.float8.inference import Float8MMConfig
    from torchao.quantization import (
        Float8Tensor,
        Float8WeightOnlyConfig,
        Int4Tensor,
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        PerGroup,
        PerRow,
    )
    from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs

    mm = Float8MMConfig(use_fast_accum=True)
    float8 = Float8Tensor.from_hp(
        weight(1), granularity=PerRow(), mm_config=mm,
        act_quant_kwargs=QuantizeTensorToFloat8Kwargs(granularity=PerRow(), hp_value_ub=1200.5),
    )  # fmt: skip
    scale = torch.rand(K // 32, N, dtype=torch.bfloat16)
    packed = torch.arange(N * K // 2).reshape(N, K // 2).to(torch.int8)
    intx = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
    tied = quantized(intx, 3)
    return {
        "model.embed_tokens.weight": tied,
        "model.layers.0.mlp.up_proj.weight": float8,
        "model.layers.0.mlp.gate_proj.weight": quantized(Float8WeightOnlyConfig(), 2),
        "model.layers.0.mlp.down_proj.weight": Int4Tensor(
            packed, scale, -scale, [1, 32], torch.Size((N, K))
        ),
        "model.norm.weight": torch.ones(K, dtype=torch.bfloat16),
        "model.layers.0.self_attn.o_proj.weight": quantized(
            Int8DynamicActivationInt8WeightConfig(), 4
        ),
        "lm_head.weight": tied,
    }


def old_parameters():
    from torchao.quantization import (
        float8_weight_only,
        int8_dynamic_activation_int4_weight,
        int8_weight_only,
        uintx_weight_only,
    )

    return {
        "a.weight": quantized(int8_weight_only(), 5),
        "b.weight": quantized(int8_dynamic_activation_int4_weight(group_size=32), 6, torch.float32),
        "c.weight": quantized(uintx_weight_only(torch.uint3, group_size=32), 7),
        "d.weight": quantized(float8_weight_only(), 8),
    }


def is_subclass(value):
    return isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter)


def encoded(v):
    """A value as torchao's header has it."""
    if isinstance(v, torch.dtype):
        return {"_type": "torch.dtype", "_data": str(v).split(".")[-1]}
    if isinstance(v, enum.Enum):
        return {"_type": type(v).__name__, "_data": v.name}
    if isinstance(v, types.FunctionType):
        return {"_type": "function", "_data": v.__name__}
    if hasattr(v, "_asdict"):
        return {"_type": type(v).__name__, "_data": {k: encoded(i) for k, i in v._asdict().items()}}
    if dataclasses.is_dataclass(v):
        return {"_type": type(v).__name__, "_data": {k: encoded(i) for k, i in vars(v).items()}}
    if isinstance(v, dict):
        return {k: encoded(i) for k, i in v.items()}
    if isinstance(v, (list, tuple)):
        return [encoded(i) for i in v]
    assert v is None or isinstance(v, (bool, int, float, str)), v
    return v


def described(tensor, name, tensors):
    """The JSON of a subclass; what is a tensor in it goes to `tensors` by its name."""
    data, own = {}, []
    for key, v in vars(tensor).items():
        if key == "_is_param":
            continue
        if is_subclass(v):
            data[key] = described(v, f"{name}.{key}", tensors)
        elif isinstance(v, torch.Tensor):
            own.append(key)
            tensors[f"{name}.{key}"] = v
        else:
            data[key] = encoded(v)
    data.setdefault("dtype", encoded(tensor.dtype))
    data.setdefault("shape", list(tensor.shape))
    return {"_type": type(tensor).__name__, "_data": data, "_tensor_data_names": own}


def compare_with_torchao(tensor, mine):
    """Every attribute that torchao's own writer has is the same here."""
    from torchao.prototype.safetensors.safetensors_utils import TensorSubclassAttributeJSONEncoder

    theirs = json.loads(json.dumps(tensor, cls=TensorSubclassAttributeJSONEncoder))
    mine = json.loads(json.dumps(mine))
    assert theirs["_type"] == mine["_type"]
    assert sorted(theirs["_tensor_data_names"]) == sorted(mine["_tensor_data_names"])
    for key, value in theirs["_data"].items():
        assert mine["_data"][key] == value, (key, mine["_data"][key], value)


def write_expected(folder, parameters):
    tensors, metadata = {}, {}
    for name, v in parameters.items():
        if not is_subclass(v):
            tensors[name] = v
            continue
        metadata[name] = described(v, name, tensors)
        if torchao.__version__ != "0.9.0":
            compare_with_torchao(v, metadata[name])
    listed = {
        name: {
            "dtype": str(v.dtype).split(".")[-1],
            "shape": list(v.shape),
            "hex": v.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex(),
        }
        for name, v in tensors.items()
    }
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in listed.items()]
    more = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in metadata.items()]
    text = ['{"tensors": {', ",\n".join(lines), ' },\n "metadata": {', ",\n".join(more), "}}", ""]
    (folder / "expected.json").write_text("\n".join(text))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}) + "\n")
    packages = ["torch", "torchao"]
    write_made_by(folder / "made_by.json", __file__, packages, "Saved with torch.save.")


def make_new():
    folder = fresh(GOLDEN / "checkpoint" / "torchao")
    parameters = new_parameters()
    files = [f"pytorch_model-0000{i + 1}-of-00002.bin" for i in range(2)]
    where = {name: files["mlp" in name] for name in parameters}
    for file in files:
        torch.save({k: v for k, v in parameters.items() if where[k] == file}, folder / file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=1) + "\n")
    write_expected(folder, parameters)


def make_old():
    folder = fresh(GOLDEN / "checkpoint" / "torchao_old")
    parameters = old_parameters()
    torch.save(parameters, folder / "pytorch_model.bin")
    write_expected(folder, parameters)


if __name__ == "__main__":
    {"new": make_new, "old": make_old}[sys.argv[1]]()
