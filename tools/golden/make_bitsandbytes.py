"""Writes tests/golden/bitsandbytes/: tiny Llamas quantized by bitsandbytes on a CPU.

"transformers" cases are quantized and saved by transformers; the others by bitsandbytes' own
functions with block sizes that transformers does not offer. Expected 4-bit weights are the stored
quant_map times absmax, and the tool's portable dequantization to float32 must agree. (Its CPU kernel
reads blocks that cross rows wrongly, and has an FP4 table rounded to four digits.) int8 weights are code times SCB / 127 as in the tool's
float path (MatMul8bitFp); activations are the tool's int8_vectorwise_quant, a token at a time.
"""

import json
import os
import sys
import tempfile

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors import safe_open
from transformers import BitsAndBytesConfig, LlamaForCausalLM

from common import GOLDEN
from quantized import float_tensors, linear_names, save_checkpoint, write_expected
from tiny import as_transformers_4, fresh, save_tokenizer, tiny_config, tiny_model

ONE = dict(num_hidden_layers=1)
SMALL = dict(ONE, hidden_size=64, intermediate_size=128)
NESTED = dict(ONE, hidden_size=64, intermediate_size=320)  # 320 blocks of 64: two nested blocks
# 96 and 80 are no multiples of 64: blocks cross the rows.
CROSSING = dict(ONE, hidden_size=96, intermediate_size=80, num_attention_heads=4)
UNSLOTH = ["embed_tokens", "lm_head", "multi_modal_projector", "model.layers.0.mlp.down_proj",
           "model.layers.1.self_attn"]  # fmt: skip

# name: (configuration changes, arguments of BitsAndBytesConfig or of quantize_4bit, options)
CASES = {
    "nf4_double": (
        NESTED,
        dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
        {"transformers": True},
    ),
    "nf4_bf16_biases": (
        dict(SMALL, attention_bias=True, mlp_bias=True),
        dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
        {"transformers": True, "dtype": torch.bfloat16, "v4": True},
    ),
    "nf4_dynamic": (
        dict(SMALL, num_hidden_layers=2),
        dict(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            llm_int8_skip_modules=UNSLOTH,
        ),
        {"transformers": True, "dtype": torch.bfloat16},
    ),
    "fp4": (SMALL, dict(load_in_4bit=True), {"transformers": True}),
    "nf4_storage_bf16": (
        SMALL,
        dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage=torch.bfloat16),
        {"transformers": True, "dtype": torch.bfloat16},
    ),
    "fp4_b256_double": (
        SMALL, dict(quant_type="fp4", blocksize=256, compress_statistics=True), {},
    ),
    "nf4_crossing": (CROSSING, dict(quant_type="nf4", blocksize=64), {}),
    "int8": (SMALL, dict(load_in_8bit=True), {"transformers": True, "int8": True}),
    "int8_no_outliers": (
        SMALL,
        dict(load_in_8bit=True, llm_int8_threshold=0.0),
        {"transformers": True, "int8": True, "v4": True},
    ),
}  # fmt: skip
STATE = "weight.quant_state.bitsandbytes__"


def quantize_by_transformers(folder, model, arguments, dtype):
    with tempfile.TemporaryDirectory() as source:
        model.to(dtype).save_pretrained(source)
        LlamaForCausalLM.from_pretrained(
            source, quantization_config=BitsAndBytesConfig(**arguments), dtype=dtype, device_map="cpu"
        ).save_pretrained(folder)
    save_tokenizer(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {k: file.get_tensor(k) for k in file.keys()}


def quantize_by_functions(folder, config, model, arguments, dtype, v4):
    tensors = float_tensors(model, config, dtype)
    for name in linear_names(model):
        code, state = bnb.quantize_4bit(tensors[f"{name}.weight"], **arguments)
        tensors[f"{name}.weight"] = code
        for part, value in state.as_dict(packed=True).items():
            tensors[f"{name}.weight.{part}"] = value
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=arguments["quant_type"],
        bnb_4bit_use_double_quant=arguments.get("compress_statistics", False),
    ).to_dict()  # fmt: skip
    save_checkpoint(folder, config, tensors, quantization, v4)
    return tensors


def four_bit_weight(tensors, name):
    """The exact float32 weight of a 4-bit layer."""
    prefix = f"{name}.weight."
    parts = {k[len(prefix):]: v for k, v in tensors.items() if k.startswith(prefix)}  # fmt: skip
    key = next(k for k in parts if k.startswith("quant_state"))
    state = json.loads(bytes(parts[key].numpy()))
    absmax = parts["absmax"]
    if absmax.dtype == torch.uint8:
        nested = parts["nested_absmax"].repeat_interleave(state["nested_blocksize"])[: len(absmax)]
        absmax = parts["nested_quant_map"][absmax.long()] * nested
        absmax = absmax + torch.tensor(state["nested_offset"])
        tool = bnb.QuantState.from_dict(dict(parts), device=torch.device("cpu"))
        assert torch.equal(absmax, bnb.dequantize_blockwise(tool.absmax, tool.state2) + tool.offset)
    code = tensors[f"{name}.weight"].view(torch.uint8).flatten()
    code = torch.stack([code >> 4, code & 15], 1).flatten().long()
    rows, columns = state["shape"]
    code = code[: rows * columns]
    scale = absmax.repeat_interleave(state["blocksize"])[: rows * columns]
    weight = (parts["quant_map"][code] * scale).reshape(rows, columns)
    answer = _dequantize_4bit_compute(
        tensors[f"{name}.weight"].view(torch.uint8).flatten(), absmax, parts["quant_map"],
        state["blocksize"], state["shape"], torch.float32,
    )  # fmt: skip
    assert torch.equal(answer, weight), name
    return weight


def int8_inputs(threshold):
    def quantize(x):
        rows = x.reshape(-1, x.shape[-1])
        code, absmax, columns = bnb.int8_vectorwise_quant(rows.clone(), threshold)
        value = code.to(x.dtype) * (absmax[:, None].to(x.dtype) / 127)
        if columns is not None and len(columns):
            value[:, columns] = rows[:, columns]
        return value.reshape(x.shape)

    return quantize


def make(name):
    changes, arguments, options = CASES[name]
    folder = fresh(GOLDEN / "bitsandbytes" / name)
    dtype = options.get("dtype", torch.float16)
    config = tiny_config(dtype=dtype, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 401)
    if options.get("transformers"):
        tensors = quantize_by_transformers(folder, model, arguments, dtype)
        notes = "Quantized and saved by transformers."
        if options.get("v4"):
            as_transformers_4(folder)
    else:
        tensors = quantize_by_functions(folder, config, model, arguments, dtype, options.get("v4"))
        notes = "Quantized by bitsandbytes' functions, in the layout that transformers saves."
    inputs = None
    if options.get("int8"):
        weights = {
            k[:-4]: tensors[f"{k[:-4]}.weight"].float() * v.mul(1.0 / 127.0)[:, None]
            for k, v in tensors.items()
            if k.endswith(".SCB")
        }
        threshold = arguments.get("llm_int8_threshold", 6.0)
        inputs = {k: int8_inputs(threshold) for k in weights}
        notes += f" Activations int8 per token, in 'logits' as well; outliers, whole columns, from {threshold}."
    else:
        weights = {
            k.split(f".{STATE}")[0]: four_bit_weight(tensors, k.split(f".{STATE}")[0])
            for k in tensors
            if STATE in k
        }
    packages = ["bitsandbytes", "torch", "transformers"]
    write_expected(folder, tensors, weights, __file__, packages, notes, inputs=inputs)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
