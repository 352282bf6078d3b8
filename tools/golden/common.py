"""Shared by the golden scripts: paths, the `expected/` layout, the record of who made a folder."""

import datetime
import importlib.metadata
import json
import pathlib
import zlib

import numpy as np
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


def versions(*packages):
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_made_by(path, script, packages, notes):
    """made_by.json: which script and which tool versions wrote a folder, and what to know of it."""
    write_json(
        path,
        {
            "script": f"tools/golden/{pathlib.Path(script).name}",
            "versions": versions(*packages),
            "date": datetime.date.today().isoformat(),
            "notes": notes,
        },
    )


def crc32(array):
    """CRC-32 (zlib's) of the row-major little-endian float32 bytes, as eight hex digits."""
    return f"{zlib.crc32(np.ascontiguousarray(array, dtype='<f4').tobytes()):08x}"


def write_expected_weights(folder, weights, full):
    """Every module's CRC goes to weights_crc32.json, those named in `full` are stored whole when they
    are small: they show where a difference is, and the folders should stay small.

    weights: {module name: float32 array (out, in)}; full: names, or None for all.
    """
    weights = {k: np.ascontiguousarray(v, dtype=np.float32) for k, v in weights.items()}
    lines = [
        f" {json.dumps(k)}: {json.dumps({'shape': list(v.shape), 'crc32': crc32(v)})}"
        for k, v in sorted(weights.items())
    ]
    (folder / "weights_crc32.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    chosen = {k: v for k, v in weights.items() if full is None or k in full}
    if full is not None and set(full) - set(chosen):
        raise ValueError(f"no such module: {sorted(set(full) - set(chosen))}")
    if chosen and sum(v.nbytes for v in chosen.values()) <= 16000:
        save_file(chosen, folder / "weights.safetensors")
