"""Logits of transformers in float32 over the first tokens of a text.

usage: reference_logits.py FOLDER TEXT --out LOGITS.npy [-n 512] [--activations QUANTIZED_FOLDER]

Writes LOGITS.npy, float32 (n, vocabulary), and LOGITS.tokens.npy, int64 (n), and prints the tokens
as `nibble logits --tokens` takes them. FOLDER is a plain one, or the `-dequantized` sibling that
the quantize_*.py scripts write with their tool's own dequantized weights.
"""

import argparse

import numpy as np

from model import encode_file, open_model, window_logits


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--out", required=True)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--activations")
    args = parser.parse_args()
    tokens = encode_file(args.folder, args.text)[: args.n]
    answer = window_logits(open_model(args.folder, args.activations), tokens)
    np.save(args.out, answer.numpy())
    np.save(args.out.removesuffix(".npy") + ".tokens.npy", tokens.numpy())
    print(",".join(str(int(t)) for t in tokens))


if __name__ == "__main__":
    main()
