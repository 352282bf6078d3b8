"""Writes tests/golden/gguf/all_types.gguf and all_types.expected.safetensors.

One tensor of shape (4, 512) per ggml type. Types that the gguf package can quantize hold quantized
Gaussian rows; the others hold random blocks whose scale fields are set to finite values, among them
zero, negative and subnormal ones. Expected values are gguf.quants.dequantize of the stored bytes,
but for Q8_K, which that package cannot read: there the format's formula d * q is applied.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

from common import GOLDEN, write_made_by

ROWS, COLUMNS = 4, 512
QUANTIZED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.TQ1_0, T.TQ2_0, T.MXFP4]
# Byte offsets of the float16 fields in a block of each type that is filled at random.
F16_FIELDS = {
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
    T.IQ2_XXS: [0],
    T.IQ2_XS: [0],
    T.IQ2_S: [0],
    T.IQ3_XXS: [0],
    T.IQ3_S: [0],
    T.IQ1_S: [0],
    T.IQ4_NL: [0],
    T.IQ4_XS: [0],
}
# The second set of these types: random blocks also for those that have a quantizer.
RANDOM_TOO = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.TQ1_0: [52]}


def random_scales(rng, count):
    """Finite float16 scales: log-uniform magnitudes, some negative, then a few special ones."""
    scales = np.exp2(rng.uniform(-12, -1, count)) * rng.choice([1, 1, 1, -1], count)
    special = np.array([0.0, -0.0, 2.0**-24, -(2.0**-15), 3 * 2.0**-20, 100.0])
    where = rng.choice(count, min(len(special), count // 2), replace=False)
    scales[where] = special[: len(where)]
    return scales.astype(np.float16)


def gaussian_rows(rng):
    rows = rng.normal(0, 0.05, (ROWS, COLUMNS)).astype(np.float32)
    rows[:, ::37] *= 9  # outlier channels
    rows[1, :256] = 0  # blocks whose scale is zero
    rows[2, 256:] = rng.choice([-0.25, 0, 0.25], 256)
    return rows


def random_blocks(rng, qtype, f16_fields, count=None):
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    count = count or ROWS * COLUMNS // block
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in f16_fields:
        data[:, offset : offset + 2] = random_scales(rng, count).view(np.uint8).reshape(count, 2)
    return data


def q8_k(rng):
    """block_q8_K: float32 d, int8 q[256], int16 sums of each sixteen q."""
    count = ROWS * COLUMNS // 256
    d = rng.normal(0, 0.01, count).astype("<f4")
    d[0] = 0
    q = rng.integers(-127, 128, (count, 256)).astype(np.int8)
    sums = q.reshape(count, 16, 16).sum(-1).astype("<i2")
    parts = [
        d.view(np.uint8).reshape(count, 4),
        q.view(np.uint8),
        sums.view(np.uint8).reshape(count, 32),
    ]
    return np.concatenate(parts, 1), d[:, None] * q.astype(np.float32)


def iq1_m(rng, count=None, scales=None, data=None):
    """The float16 scale of IQ1_M is spread over the high nibbles of its four uint16 scale words."""
    data = random_blocks(rng, T.IQ1_M, [], count) if data is None else data
    scales = random_scales(rng, len(data)) if scales is None else scales.astype(np.float16)
    bits = scales.view(np.uint16)
    words = data[:, 48:56].copy().view("<u2")
    for i in range(4):
        words[:, i] = (words[:, i] & 0x0FFF) | (((bits >> (4 * i)) & 15) << 12)
    data[:, 48:56] = words.view(np.uint8)
    return data


def mxfp4(rng):
    data = random_blocks(rng, T.MXFP4, [])
    data[:, 0] = rng.integers(110, 132, len(data))
    data[:5, 0] = [0, 1, 2, 3, 250]  # the two subnormal codes have their own rule in ggml
    return data


def nvfp4(rng):
    """Four unsigned e4m3 scales, then 32 bytes of codes; 0x7f means zero in ggml."""
    data = random_blocks(rng, T.NVFP4, [])
    data[:, :4] = rng.integers(0x10, 0x50, (len(data), 4))
    data[0, :4] = [0x00, 0x01, 0x7E, 0x7F]
    return data


def blocks_and_values():
    """Yields (tensor name, type, bytes shaped (ROWS, bytes per row), float32 values)."""
    rng = np.random.default_rng(20261129)
    plain = gaussian_rows(rng)
    plain[3, :6] = [0.0, -0.0, 2.0**-24, 65504, -65504, 2.0**-14]
    yield "f32", T.F32, plain, plain
    for name, qtype in (("f16", T.F16), ("bf16", T.BF16)):
        data = gguf.quants.quantize(plain, qtype)
        yield name, qtype, data, gguf.quants.dequantize(data, qtype)
    made = {
        f"{t.name.lower()}": (t, gguf.quants.quantize(gaussian_rows(rng), t)) for t in QUANTIZED
    }
    for qtype, fields in F16_FIELDS.items():
        made[qtype.name.lower()] = (qtype, random_blocks(rng, qtype, fields))
    for qtype, fields in RANDOM_TOO.items():
        made[f"{qtype.name.lower()}.random"] = (qtype, random_blocks(rng, qtype, fields))
    made["iq1_m"] = (T.IQ1_M, iq1_m(rng))
    made["mxfp4.random"] = (T.MXFP4, mxfp4(rng))
    made["nvfp4"] = (T.NVFP4, nvfp4(rng))
    for name, (qtype, data) in made.items():
        data = data.reshape(ROWS, -1)
        yield name, qtype, data, gguf.quants.dequantize(data, qtype)
    data, values = q8_k(rng)
    yield "q8_k", T.Q8_K, data.reshape(ROWS, -1), values


def main():
    folder = GOLDEN / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "all_types.gguf", "llama")
    writer.add_name("one tensor of each type")
    expected = {}
    for name, qtype, data, values in blocks_and_values():
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(ROWS, COLUMNS)
        assert np.isfinite(values).all(), name
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=qtype)
        expected[name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, folder / "all_types.expected.safetensors")
    # The description of this file, less the line breaks of its source.
    notes = " ".join(__doc__.split())
    write_made_by(folder / "all_types.made_by.json", __file__, ["gguf", "numpy"], notes)
    reader = gguf.GGUFReader(folder / "all_types.gguf")
    for tensor in reader.tensors:
        print(
            f"{tensor.name:16} {tensor.tensor_type.name:8} {tuple(tensor.shape)} {tensor.n_bytes}"
        )


if __name__ == "__main__":
    main()
