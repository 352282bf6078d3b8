"""A float folder -> GPTQ by gptqmodel (4 bit, group 64), and its dequantized sibling.

usage: quantize_gptq.py SOURCE FOLDER TEXT        (in the environment of requirements-gptq.txt)

TEXT is the calibration text, cut into pieces of 256 tokens. FOLDER-dequantized holds gptqmodel's
own dequantization in float32, for reference_logits.py and perplexity.py.
"""

import contextlib
import pathlib
import sys
import tempfile

import golden  # noqa: F401
from make_gptq import GPTQModel, QuantizeConfig, tools_weights, torch
from model import encode_file

from folders import read_state, write_dequantized


def main(*arguments):
    source, folder, text = (str(pathlib.Path(a).resolve()) for a in arguments)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        quantize(source, folder, text)  # the tool leaves a folder of logs where it runs
    weights = {name: weight for name, (weight, _, _) in tools_weights(pathlib.Path(folder)).items()}
    write_dequantized(source, folder, weights, read_state(folder))


def quantize(source, folder, text):
    config = QuantizeConfig(bits=4, group_size=64, sym=True, desc_act=False, offload_to_disk=False)
    model = GPTQModel.load(source, config, dtype=torch.float16)
    pieces = encode_file(source, text).split(256)
    calibration = [
        {"input_ids": p.tolist(), "attention_mask": [1] * len(p)} for p in pieces if len(p) == 256
    ]
    model.quantize(calibration, batch_size=1)
    model.save(folder)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
