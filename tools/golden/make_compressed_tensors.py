"""Writes tests/golden/compressed_tensors/: tiny Llamas compressed by compressed-tensors itself.

Scales are the tool's: calculate_qparams (and generate_gparam) of minimum and maximum. Codes, packing
and config are written by its ModelCompressor. Expected weights are its own dequantize over its own
unpacking, with the stored scales widened to float32. Expected logits: 'logits' with its own fake
quantization of the inputs, in float32, where the config quantizes inputs, and then 'logits_float'
with inputs left alone.

make_compressed_tensors_old.py writes what this version no longer writes.
"""

import copy
import json
import sys

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.mxfp6.helpers import unpack_fp6_from_uint8
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization import apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp
from compressed_tensors.quantization.utils import generate_gparam
from compressed_tensors.transform import TransformConfig, apply_transform_config
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from common import GOLDEN, write_expected_weights, write_made_by
from kv import attention_reads, stored_cache
from slim import VOCABULARY, slim_tokens
from tiny import as_transformers_4, float_model, fresh, logits, tiny_config, tiny_model
from tiny import write_logits

BF16, F32 = torch.bfloat16, torch.float32
TINY = dict(
    num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=VOCABULARY, architectures=["LlamaForCausalLM"],
)  # fmt: skip
SMALL = dict(TINY, hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
UNTIED = dict(TINY, tie_word_embeddings=False)
K_PROJ = "model.layers.0.self_attn.k_proj"
LINEAR = ["Linear"]
HEAD = ["lm_head"]


def integers(bits, group=None, symmetric=True, **more):
    strategy = "channel" if group == -1 else "tensor" if group is None else "group"
    out = dict(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, **more)
    return dict(out, group_size=group) if strategy == "group" else out


def floats(strategy, **more):
    return dict(num_bits=8, type="float", strategy=strategy, **more)


def one(weights, inputs=None, targets=LINEAR, ignore=HEAD):
    return {"group_0": dict(targets=targets, weights=weights, input_activations=inputs)}, ignore


def preset(name, group=None, **changes):
    scheme = preset_name_to_scheme(name, LINEAR).model_dump()
    for part in ("weights", "input_activations"):
        if scheme[part] is not None and group and scheme[part]["group_size"] == 128:
            scheme[part]["group_size"] = group
    scheme["weights"].update(changes)
    return {"group_0": scheme}, HEAD


def part(name, weights, inputs=None):
    return dict(targets=[f"re:.*{name}$"], weights=weights, input_activations=inputs)


MIXED_BITS = {
    "q": part("q_proj", integers(2, 16)),
    "k": part("k_proj", integers(6, -1, symmetric=False)),
    "v": part("v_proj", integers(7, 16)),
    "o": part("o_proj", integers(3, 16, symmetric=False)),
    "gate": part("gate_proj", integers(5, -1)),
    "up": part("up_proj", integers(8, symmetric=False)),
    "down": part("down_proj", integers(5, 32, symmetric=False)),
}
TOKEN8 = integers(8, dynamic=True) | {"strategy": "token"}
STATIC8 = integers(8)
FP8_TOKEN = floats("token", dynamic=True)
NV = preset("NVFP4")[0]["group_0"]
PARTS = {
    "nv": dict(NV, targets=["re:.*q_proj$"]),
    "mx": dict(preset("MXFP8")[0]["group_0"], targets=["re:.*k_proj$"]),
    "fp8": part("v_proj", floats("channel"), FP8_TOKEN),
    "int8": dict(targets=["model.layers.0.self_attn.o_proj"], weights=integers(8, -1),
                 input_activations=TOKEN8),
    "int4": part("(up|down)_proj", integers(4, 16, symmetric=False)),
}  # fmt: skip
WHOLE_CALL = {
    "attention": part("(q|k|v|o)_proj", floats("tensor"), floats("tensor", dynamic=True)),
    "mlp": part("(gate|up|down)_proj", integers(8, -1), integers(8, symmetric=False, dynamic=True)),
}
EMBEDDINGS = {
    "embedding": dict(targets=["Embedding"], weights=integers(8, 16)),
    "head": dict(targets=["re:.*lm_head"], weights=integers(4, -1, symmetric=False)),
    "rest": dict(targets=LINEAR, weights=integers(4, 32)),
}
KV = floats("tensor", dynamic=False, symmetric=True)
R4 = {
    "R4": dict(
        type="hadamard",
        apply=[
            dict(targets=["re:.*down_proj$"], location="input"),
            dict(targets=["re:.*down_proj$"], location="weight_input", inverse=True),
        ],
    ),
    "V": dict(
        type="hadamard",
        head_dim=16,
        apply=[
            dict(targets=["re:.*o_proj$"], location="input"),
            dict(targets=["re:.*o_proj$"], location="weight_input", inverse=True),
        ],
    ),
}

# name: (model, (config_groups, ignore), options)
CASES = {
    "w4_g32": (SMALL, one(integers(4, 32)), {}),
    "w4_g16_asym": (
        dict(UNTIED, attention_bias=True),
        one(integers(4, 16, symmetric=False), ignore=["re:.*lm_head", "re:.*gate_proj"]),
        {"v4": True},
    ),
    "w8_channel_f32_scales": (TINY, one(integers(8, -1)), {"scale_dtype": F32, "key": "compression_config"}),
    "w3_channel": (dict(TINY, hidden_size=48, intermediate_size=80, num_attention_heads=3), one(integers(3, -1)), {}),
    "mixed_bits": (TINY, (MIXED_BITS, HEAD), {}),
    "embedding_and_head": (UNTIED, (EMBEDDINGS, []), {"full": ["lm_head", K_PROJ]}),
    "embedding_tied": (TINY, ({"e": dict(targets=["Embedding"], weights=integers(4, 16))}, HEAD), {"full": ["model.embed_tokens"]}),
    "int8_token": (TINY, one(integers(8, -1), TOKEN8), {"v4": True}),
    "int8_static_asym": (dict(TINY, attention_bias=True, mlp_bias=True), one(integers(8), integers(8, symmetric=False)), {}),
    "int8_token_asym": (TINY, one(integers(8, 16), dict(TOKEN8, symmetric=False)), {}),
    "int8_groups": (TINY, one(integers(8, 16), integers(8, 16, symmetric=False, dynamic=True)), {}),
    "w4a8_int": (TINY, one(integers(4, 32), TOKEN8), {}),
    "w4a4_int": (TINY, one(integers(4, -1), dict(TOKEN8, num_bits=4)), {}),
    "w4a8_fp8": (TINY, preset("W4AFP8", 32), {}),
    "fp8_weights_only": (TINY, one(floats("tensor")), {}),
    "fp8_token": (TINY, preset("FP8_DYNAMIC"), {}),
    "fp8_static_kv": (TINY, preset("FP8"), {"kv": KV, "v4": True}),
    "fp8_block": (
        dict(TINY, intermediate_size=96, head_dim=24, num_attention_heads=4, num_key_value_heads=2),
        one(floats("block", block_structure=[40, 32]), floats("group", dynamic=True, group_size=32)),
        {},
    ),
    "nvfp4": (TINY, preset("NVFP4"), {}),
    "nvfp4_a16": (TINY, preset("NVFP4A16"), {}),
    "mxfp4": (TINY, preset("MXFP4"), {}),
    "mxfp4_a8": (TINY, preset("MXFP4xFP8", 32), {}),
    "mxfp6_a8": (TINY, preset("MXFP6A8"), {}),
    "mxfp8": (TINY, preset("MXFP8"), {}),
    "mixed_precision": (TINY, (PARTS, ["lm_head", "model.layers.0.mlp.gate_proj"]), {"full": [K_PROJ, "model.layers.0.self_attn.q_proj"]}),
    "hadamard": (TINY, one(integers(4, 16, symmetric=False), FP8_TOKEN), {"transform": R4}),
    "dynamic_tensor": (TINY, (WHOLE_CALL, HEAD), {}),
}  # fmt: skip


def extremes(x, args):
    """Minimum and maximum of what shares a scale, in the shape of the scale."""
    if args.strategy == "tensor":
        return x.min().reshape(1), x.max().reshape(1)
    if args.strategy == "channel":
        return x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    if args.strategy == "block":
        rows, columns = args.block_structure
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
        x = x.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
        return x.amin((1, 3)), x.amax((1, 3))
    x = x.unflatten(-1, (-1, args.group_size))
    return x.amin(-1), x.amax(-1)


def set_scales(module, name, x, args, scale_dtype):
    """The parameters of `name` ("weight", "input") from what was seen."""
    low, high = extremes(x.float(), args)
    global_scale = None
    if args.strategy == "tensor_group":
        global_scale = generate_gparam(low.min(), high.max())
        getattr(module, f"{name}_global_scale").data = global_scale
        if args.dynamic == "local":
            return
    scale, zero = calculate_qparams(low, high, args, global_scale=global_scale)
    getattr(module, f"{name}_scale").data = scale.to(scale_dtype)
    if hasattr(module, f"{name}_zero_point"):
        getattr(module, f"{name}_zero_point").data = zero


def watch_inputs(model, modules, config):
    seen = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.setdefault(name, []).append(inputs[0].detach())
        )
        for name, module in modules.items()
    ]
    plain = [(m, m.quantization_enabled) if hasattr(m, "quantization_enabled") else (m, True)
             for m in modules.values()]  # fmt: skip
    for module, _ in plain:
        module.quantization_enabled = False
    for seed in range(4):
        logits(model, slim_tokens(64, seed))
    for module, enabled in plain:
        module.quantization_enabled = enabled
    for hook in hooks:
        hook.remove()
    return {name: torch.cat([x.flatten(0, -2) for x in all]) for name, all in seen.items()}


def compress(model, groups, ignore, options):
    """Quantizes and compresses `model` in place; returns its compressor."""
    if "transform" in options:
        apply_transform_config(model, TransformConfig(config_groups=options["transform"]))
    config = QuantizationConfig(
        config_groups={k: QuantizationScheme(**v) for k, v in groups.items()},
        ignore=ignore,
    )
    apply_quantization_config(model, config)
    modules = {
        name: m for name, m in model.named_modules()
        if getattr(getattr(m, "quantization_scheme", None), "weights", None) is not None
    }  # fmt: skip
    static = {n: m for n, m in modules.items()
              if m.quantization_scheme.input_activations is not None
              and m.quantization_scheme.input_activations.dynamic is not True}  # fmt: skip
    dtype = options.get("scale_dtype", BF16)
    inputs = watch_inputs(model, static, config)
    for name, module in modules.items():
        scheme = module.quantization_scheme
        set_scales(module, "weight", module.weight.data, scheme.weights, dtype)
        if name in static:
            set_scales(module, "input", inputs[name], scheme.input_activations, dtype)
    for i, layer in enumerate(model.model.layers):
        if options.get("kv"):
            for name, value in (("k_scale", 0.02 + 0.01 * i), ("v_scale", 0.03)):
                scale = torch.nn.Parameter(torch.tensor([value], dtype=BF16), requires_grad=False)
                layer.self_attn.register_parameter(name, scale)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    return compressor, modules


def exact_weight(state, scheme):
    """The tool's unpacking and dequantization, with float32 scales."""
    args = scheme.weights
    scale = state["weight_scale"]
    if scale.dtype == torch.uint8:
        scale = decompress_mx_scale(scale)
    zero = state.get("weight_zero_point")
    if "weight_shape" in state:
        wide = dict(state, weight_scale=scale.float())
        return BaseCompressor.get_value_from_registry("pack-quantized").decompress(wide, scheme)[
            "weight"
        ]
    codes = state.get("weight")
    if codes is None and args.num_bits == 6:
        rows, size = state["weight_packed"].shape
        codes = unpack_fp6_from_uint8(state["weight_packed"], rows, size * 4 // 3)
    elif codes is None:
        rows, size = state["weight_packed"].shape
        codes = unpack_fp4_from_uint8(state["weight_packed"], rows, size * 2)
    return dequantize(
        codes.float(), scale.float(), zero, args, global_scale=state.get("weight_global_scale")
    )


def fake_inputs(model, modules, tensors, transform):
    """Hooks that change inputs as the tool does, with stored scales in float32."""
    model.on_the_edge = False
    if transform:
        online = {
            k: dict(v, apply=[a for a in v["apply"] if a["location"] == "input"])
            for k, v in transform.items()
        }
        apply_transform_config(model, TransformConfig(config_groups=online))
    for name, module in modules.items():
        args = module.quantization_scheme.input_activations
        if args is None:
            continue
        stored = {
            k: tensors.get(f"{name}.input_{k}") for k in ("scale", "zero_point", "global_scale")
        }

        def hook(module, inputs, model=model, args=args, stored=stored):
            x = inputs[0]
            if args.type == "int" and args.strategy == "token" and args.symmetric:
                model.on_the_edge |= bool((-x.amin(-1) >= x.amax(-1)).any())
            global_scale = stored["global_scale"]
            if args.dynamic:
                scale, zero = compute_dynamic_scales_and_zp(x, args, module, global_scale)
            else:
                scale, zero = stored["scale"].to(x.dtype), stored["zero_point"]
            return (fake_quantize(x, scale, zero, args, global_scale).to(x.dtype),)

        model.get_submodule(name).register_forward_pre_hook(hook)
    return model


def spread_of(model, double, embedding, tokens):
    """How far float64 runs, also with the embedding scaled by 1 +- 1e-6, are from the float32 run."""
    model.on_the_edge = double.on_the_edge = False
    answer = logits(model, tokens)
    spread = 0.0
    for factor in (1.0, 1 + 1e-6, 1 - 1e-6):
        if model.on_the_edge or spread >= 1e-4:
            return answer, 1.0
        double.model.embed_tokens.weight.data = embedding * factor
        spread = max(spread, float((answer - logits(double, tokens)).abs().max()))
    return answer, spread


def stable_logits(model, count):
    """Tokens and float32 logits that small arithmetic differences do not move.

    An input close to the middle of two codes can fall to either side; a negative largest magnitude
    of symmetric integers, which is -127.5 steps, always may. Tokens are drawn one after another until
    there is no such input.
    """
    double = copy.deepcopy(model).double()
    double.on_the_edge = False
    embedding = double.model.embed_tokens.weight.data.clone()
    candidates = slim_tokens(5000, seed=7)
    tokens = candidates[:0]
    for candidate in candidates:
        longer = torch.cat([tokens, candidate[None]])
        answer, spread = spread_of(model, double, embedding, longer)
        if spread >= 1e-4:
            continue
        tokens = longer
        if len(tokens) == count:
            return tokens, answer, spread
    raise RuntimeError("no stable tokens")


def write_config(folder, compressor, options):
    compressor.update_config(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "kv" in options:  # named by hand: the tool's attention hooks are not made for this model here
        config["quantization_config"]["kv_cache_scheme"] = options["kv"]
    if "key" in options:
        config[options["key"]] = config.pop("quantization_config")
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def make(name):
    changes, (groups, ignore), options = CASES[name]
    folder = fresh(GOLDEN / "compressed_tensors" / name)
    config = tiny_config(dtype=BF16, **changes)
    model = tiny_model(config, seed=list(CASES).index(name) + 701).to(BF16)
    compressor, modules = compress(model, copy.deepcopy(groups), list(ignore), options)
    tensors = {k: v for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        for key in [k for k in tensors if k.startswith("lm_head.")]:
            del tensors[key]
    tensors = {k: v.clone().contiguous() for k, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    if options.get("v4"):
        as_transformers_4(folder)
    write_config(folder, compressor, options)

    expected = folder / "expected"
    expected.mkdir()
    tensors = load_file(folder / "model.safetensors")
    weights, state = {}, {}
    for key, value in tensors.items():
        module = key.rpartition(".")[0]
        if module not in modules and value.is_floating_point() and ".self_attn.k_s" not in key \
                and ".self_attn.v_s" not in key and "_input." not in key:  # fmt: skip
            state[key] = value
        if module in modules and key.endswith(".bias"):
            state[key] = value
    for module, it in modules.items():
        own = {k.rpartition(".")[2]: v for k, v in tensors.items()
               if k.rpartition(".")[0] == module}  # fmt: skip
        if not own:  # a tied head
            continue
        weights[module] = exact_weight(own, it.quantization_scheme)
        state[f"{module}.weight"] = weights[module]
    write_expected_weights(
        expected, {k: v.numpy() for k, v in weights.items()}, options.get("full", [K_PROJ])
    )
    read = AutoConfig.from_pretrained(folder)
    quantizes = any(m.quantization_scheme.input_activations for m in modules.values())
    transform = options.get("transform")
    fake = fake_inputs(float_model(read, state), modules, tensors, transform)
    with attention_reads(stored_cache(tensors)):
        tokens, answer, spread = stable_logits(fake, 8 if quantizes else 16)
    notes = ""
    if quantizes:
        notes = (
            "Inputs by the tool's fake quantization. Tokens "
            f"chosen so that none lies near a rounding boundary: float64 runs differ by {spread:.2g}."
        )
    if "kv" in options:
        notes += " KV cache e4m3."
    write_logits(expected, tokens=tokens, logits=answer)
    packages = ["compressed-tensors", "torch", "transformers"]
    write_made_by(expected / "made_by.json", __file__, packages, notes)
    print(name, len(weights), "modules, logits", float(answer.std()), "spread", spread)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
