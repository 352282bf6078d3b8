"""A float folder -> AWQ by autoawq's WQLinear_GEMM (4 bit, group 64), and its dequantized sibling.

usage: quantize_awq.py SOURCE FOLDER              (in the environment of requirements-awq.txt)

Round to nearest, without the search for smoothing scales. FOLDER-dequantized holds the tool's
dequantize_gemm in float32.
"""

import sys

import golden  # noqa: F401
import torch
from make_awq import pack_model
from model import open_model

from folders import write_dequantized, write_folder

CONFIG = {
    "quant_method": "awq", "zero_point": True, "group_size": 64, "bits": 4, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip


def main(source, folder):
    model = open_model(source)
    weights = pack_model(model, CONFIG["group_size"])
    state = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    write_folder(source, folder, state, "float16", CONFIG)
    write_dequantized(source, folder, weights, state)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with torch.no_grad():
        main(*sys.argv[1:])
