#!/usr/bin/env python3
"""Small checkpoints written by the formats' own tools, for src/checkpoint/golden_test.cc.

    python make_checkpoint_samples.py ../../tests/golden/checkpoint

Needs safetensors 0.8, huggingface_hub, torch, numpy and gguf 0.19 (requirements.txt). The bytes are
the same on every run. Tensor t of a file holds the bytes t, t + 1, t + 2 ... modulo 256, so the test
can tell each byte from its neighbours.
"""

import json
import pathlib
import shutil
import sys

import gguf
import huggingface_hub
import numpy as np
import safetensors.torch
import torch

# safetensors' name, bits of an element. torch has no 6-bit floats.
DTYPES = [("BOOL", 8), ("U8", 8), ("I8", 8), ("U16", 16), ("I16", 16), ("U32", 32), ("I32", 32),
          ("U64", 64), ("I64", 64), ("F16", 16), ("BF16", 16), ("F32", 32), ("F64", 64), ("C64", 64),
          ("F8_E4M3", 8), ("F8_E4M3FNUZ", 8), ("F8_E5M2", 8), ("F8_E5M2FNUZ", 8), ("F8_E8M0", 8),
          ("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)]


def counted(start, count):
    return bytes((start + i) % 256 for i in range(count))


def write_config(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}) + "\n")


def torch_dtype(name):
    """The torch type that safetensors stores under this name, or None."""
    names = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
             "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16",
             "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
             "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
             "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
             "F4": "float4_e2m1fn_x2"}
    return getattr(torch, names[name]) if name in names else None


def make_dtypes(folder):
    """Every dtype that torch can hold, as (2, 4) elements: 8 elements take `bits` bytes."""
    folder.mkdir(parents=True)
    tensors = {}
    for t, (name, bits) in enumerate(DTYPES):
        dtype = torch_dtype(name)
        if dtype is None:
            continue
        data = torch.frombuffer(bytearray(counted(t, bits)), dtype=torch.uint8)
        if name == "BOOL":
            data = data % 2
        columns = 2 if name == "F4" else 4  # torch counts pairs
        tensors[name] = data.view(dtype).reshape(2, columns)
    tensors["scalar"] = torch.tensor(0.5)
    tensors["nothing"] = torch.zeros(3, 0)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(folder)


def make_sharded(folder):
    """Seven tensors in shards with an index, as save_pretrained writes them."""
    folder.mkdir(parents=True)
    tensors = {f"model.layers.{t}.weight": torch.frombuffer(bytearray(counted(t, 128)),
                                                            dtype=torch.uint8).reshape(8, 16).clone()
               for t in range(7)}
    huggingface_hub.save_torch_state_dict(tensors, folder, max_shard_size=300)
    write_config(folder)


def gguf_file(path, **options):
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.s8", -3)
    writer.add_uint16("t.u16", 65535)
    writer.add_int16("t.s16", -300)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.s32", -7)
    writer.add_float32("t.f32", 0.5)
    writer.add_uint64("t.u64", 2**64 - 1)
    writer.add_int64("t.s64", -2**63)
    writer.add_float64("t.f64", 1e300)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "caf\u00e9")
    writer.add_array("t.strings", ["a", "", "\u4e2d"])
    writer.add_array("t.ints", [-1, 2, 3])
    writer.add_array("t.floats", [0.5, -2.0])
    writer.add_array("t.bools", [True, False])
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


GGUF_TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
              "Q5_K", "Q6_K", "Q8_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS",
              "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "I8", "I16", "I32", "I64",
              "F64", "NVFP4"]


def make_gguf(folder):
    folder.mkdir(parents=True)
    writer = gguf_file(folder / "types.gguf")
    for t, name in enumerate(GGUF_TYPES):
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.frombuffer(counted(t, 2 * 256 // block * size), np.uint8).reshape(2, -1)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    finish(writer)

    writer = gguf_file(folder / "aligned.gguf")
    writer.add_custom_alignment(128)
    writer.add_tensor("a", np.frombuffer(counted(0, 20), np.uint8).view(np.float32))
    writer.add_tensor("b", np.frombuffer(counted(1, 24), np.uint8).view(np.float32).reshape(1, 2, 3))
    finish(writer)


def make_split(folder):
    folder.mkdir(parents=True)
    writer = gguf_file(folder / "m.gguf", split_max_tensors=2)
    for t in range(5):
        writer.add_tensor(f"t{t}", np.frombuffer(counted(t, 64), np.uint8).view(np.float32))
    finish(writer)


def main():
    root = pathlib.Path(sys.argv[1])
    for folder in "dtypes", "sharded", "gguf", "split":
        shutil.rmtree(root / folder, ignore_errors=True)
    make_dtypes(root / "dtypes")
    make_sharded(root / "sharded")
    make_gguf(root / "gguf")
    make_split(root / "split")
    for path in sorted(root.rglob("*")):
        if path.is_file():
            print(path.relative_to(root), path.stat().st_size)


if __name__ == "__main__":
    main()
