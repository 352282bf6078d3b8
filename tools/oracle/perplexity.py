"""Perplexity by transformers in float32, with the windows of `nibble eval`.

usage: perplexity.py FOLDER TEXT [--ctx 512] [--activations QUANTIZED_FOLDER]

The text is encoded once, special tokens as the tokenizer adds them, and cut into windows of --ctx
tokens that do not overlap; the last may be shorter. Every prediction inside a window counts, so a
window of c tokens gives c - 1.
"""

import argparse
import math

import torch

from model import encode_file, open_model, window_logits


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--activations")
    args = parser.parse_args()
    tokens = encode_file(args.folder, args.text)
    model = open_model(args.folder, args.activations)
    total, count = 0.0, 0
    for window in tokens.split(args.ctx):
        if len(window) < 2:
            continue
        scores = torch.log_softmax(window_logits(model, window)[:-1].double(), -1)
        total -= float(scores.gather(1, window[1:, None]).sum())
        count += len(window) - 1
    print(f"tokens {len(tokens)} predictions {count} perplexity {math.exp(total / count):.6f}")


if __name__ == "__main__":
    main()
