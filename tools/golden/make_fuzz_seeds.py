"""Seeds for the fuzz target quant_config: one linear of each golden folder, in the target's words.

usage: make_fuzz_seeds.py FOLDER     writes FOLDER/<room>_<case>; needs no packages

fuzz/corpus/quant_config has those of them that reach what its other seeds do not; this copies them:
    build/fuzz/fuzz/fuzz_quant_config -merge=1 -use_counters=0 fuzz/corpus/quant_config FOLDER
"""

import json
import struct
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
ROOMS_WITHOUT_LINEARS = {"architectures", "checkpoint", "chat_templates", "kv", "rope", "tokenizers"}
DTYPES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2",
    "F8_E8M0": "e8m0", "F4": "e2m1", "I64": "s64", "I32": "s32", "I16": "s16", "I8": "s8",
    "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "BOOL": "bool",
}  # fmt: skip
SIDECARS = ("quantize_config.json", "quant_config.json", "quantization_config.json")
FILL = bytes([0, 1, 0x38, 0x47, 0x3F, 0x80, 0x2D, 0xFF, 0x11])


def read_json(path):
    return json.loads(path.read_text()) if path.exists() else None


def headers_of(folder):
    tensors, metadata = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        metadata.update(header.pop("__metadata__", {}))
        tensors.update(header)
    return tensors, metadata


def seed_of(folder):
    """The seed, or None when no linear of the first layer is found."""
    config = read_json(folder / "config.json")
    tensors, metadata = headers_of(folder)
    if config is None:
        return None
    sizes = {"up_proj": (config.get("intermediate_size"), config.get("hidden_size"))}
    sizes["down_proj"] = sizes["up_proj"][::-1]
    for linear, (n, k) in sizes.items():
        prefix = f"model.layers.0.mlp.{linear}."
        own = {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
        if not own:
            continue
        seed = {
            "config": {k: v for k, v in config.items() if "quant" in k or "compression" in k},
            "layer": {"n": n, "k": k, "bias": "bias" in own},
            "tensors": {name: [DTYPES[t["dtype"]], t["shape"]] for name, t in own.items()},
            "metadata": {
                name[len(prefix) :]: json.loads(text)
                for name, text in metadata.items()
                if name.startswith(prefix)
            },
            "hf": read_json(folder / "hf_quant_config.json"),
            "sidecar": next((j for j in map(read_json, map(folder.joinpath, SIDECARS)) if j), None),
        }
        seed = {key: value for key, value in seed.items() if value}
        text = json.dumps(seed).replace(f"mlp.{linear}", "mlp.up_proj")
        return text.encode() + b"\0" + FILL
    return None


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for folder in sorted(p.parent for p in GOLDEN.glob("*/*/config.json")):
        if folder.parent.name in ROOMS_WITHOUT_LINEARS:
            continue
        seed = seed_of(folder)
        if seed is None:
            print(f"{folder.parent.name}/{folder.name}: no linear found")
        else:
            (out / f"{folder.parent.name}_{folder.name}").write_bytes(seed)


if __name__ == "__main__":
    main()
