"""Compares two logits files: top-1 agreement, perplexity, KL divergence, largest difference.

usage: compare_logits.py REFERENCE.npy OTHER.npy [--tokens TOKENS.npy]

KL is that of OTHER from REFERENCE, mean and maximum over positions, in nats. Without --tokens the
file beside REFERENCE (REFERENCE.tokens.npy) gives the tokens for the perplexities, if it exists.
"""

import argparse
import pathlib

import numpy as np


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def perplexity(scores, tokens):
    return float(np.exp(-scores[np.arange(len(tokens) - 1), tokens[1:]].mean()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("reference")
    parser.add_argument("other")
    parser.add_argument("--tokens")
    args = parser.parse_args()
    reference, other = np.load(args.reference), np.load(args.other)
    if reference.shape != other.shape:
        raise SystemExit(f"shapes differ: {reference.shape} and {other.shape}")
    a, b = log_softmax(reference.astype(np.float64)), log_softmax(other.astype(np.float64))
    kl = (np.exp(a) * (a - b)).sum(-1)
    same = reference.argmax(-1) == other.argmax(-1)
    print(f"positions         {len(same)}")
    print(
        f"top-1 agreement   {100 * same.mean():.3f} %  "
        f"(differs at {np.flatnonzero(~same)[:8].tolist()})"
    )
    print(f"mean KL           {kl.mean():.3e}  (max {kl.max():.3e} at {int(kl.argmax())})")
    print(f"max |difference|  {np.abs(reference - other).max():.3e}")
    path = pathlib.Path(args.tokens or args.reference.removesuffix(".npy") + ".tokens.npy")
    if path.exists():
        tokens = np.load(path)
        pa, pb = perplexity(a, tokens), perplexity(b, tokens)
        print(f"perplexity        {pa:.6f} and {pb:.6f}  ({100 * (pb / pa - 1):+.4f} %)")


if __name__ == "__main__":
    main()
