"""The tiny models behind the golden folders: configuration, weights, tokenizer, logits."""

import copy
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()

VOCABULARY = 288  # 256 bytes, 3 special tokens, 29 merges
TEXT = (
    "The tide went out over the flats and the children went after it with buckets and with the "
    "wrong shoes on. There is no hurry in the morning, said the old man, there is only the water "
    "and the wind and the light on the water. Then they counted what they had found: seven "
    "shells, three stones, and a length of green rope that nobody would throw away. "
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)


def tiny_config(mistral=False, **changes):
    values = dict(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=2,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    values.update(changes)
    return MistralConfig(**values) if mistral else LlamaConfig(**values)


def tiny_model(config, seed=1):
    """A float32 model whose random weights have outlier channels and rows, as trained ones do."""
    cls = MistralForCausalLM if isinstance(config, MistralConfig) else LlamaForCausalLM
    model = cls(config).eval()
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def some(count, share):
        return torch.rand(count, generator=generator) < share

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                value = 1 + 0.2 * normal(len(parameter))
                value[some(len(value), 0.03)] *= 4
            elif name.endswith(".bias"):
                value = 0.2 * normal(len(parameter))
            elif "embed_tokens" in name or "lm_head" in name:
                value = 0.25 * normal(*parameter.shape)
            else:
                rows, columns = parameter.shape
                value = normal(rows, columns) / columns**0.5
                value[:, some(columns, 0.03)] *= 6
                value[some(rows, 0.03)] *= 3
            parameter.copy_(value)
    return model


def tiny_tokens(count=16, seed=7):
    return torch.from_numpy(np.random.default_rng(seed).integers(3, VOCABULARY, count))


def save_tokenizer(folder):
    """A byte-level BPE with the three ChatML tokens, as tokenizer.json and its configuration."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[2],
        unk_token=special[0], pad_token=special[0],
    )  # fmt: skip
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def fresh(folder):
    """An empty folder, whatever an earlier run left there."""
    folder = pathlib.Path(folder)
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@torch.no_grad()
def logits(model, tokens):
    return model(tokens[None]).logits[0].float()


def stable_logits(model, draw=tiny_tokens, limit=1e-4):
    """Tokens, float32 logits that small arithmetic differences do not move, and how far they move.

    A number close to the middle of two codes (of an activation, a key, a value) can fall to either
    side, which moves logits by far more than float32 arithmetic does. Tokens are drawn until float64
    runs, also with the embedding scaled by 1 +- 1e-6, agree with the float32 run.
    """
    double = copy.deepcopy(model).double()
    embedding = double.get_input_embeddings().weight
    original = embedding.data.clone()
    for seed in range(7, 400):
        tokens = draw(seed=seed)
        answer = logits(model, tokens)
        spread = 0.0
        for factor in (1.0, 1 + 1e-6, 1 - 1e-6):
            embedding.data = original * factor
            spread = max(spread, float((answer - logits(double, tokens)).abs().max()))
        if spread < limit:
            return tokens, answer, spread
    raise RuntimeError("no stable tokens")


def write_logits(expected, **arrays):
    """logits.safetensors: 'tokens' s64 (T), 'logits' f32 (T, vocabulary), and the rest given."""
    save_file(
        {k: np.ascontiguousarray(v.numpy()) for k, v in arrays.items()},
        expected / "logits.safetensors",
    )


def float_model(config, state):
    """A float32 model of this configuration with `state` ({name: tensor}); every name must fit."""
    config = type(config).from_dict(
        {k: v for k, v in config.to_dict().items() if k != "quantization_config"}
    )
    config._attn_implementation = "eager"
    cls = MistralForCausalLM if isinstance(config, MistralConfig) else LlamaForCausalLM
    model = cls(config).float().eval()
    missing, unexpected = model.load_state_dict(
        {k: v.float() for k, v in state.items()}, strict=False
    )
    missing = [k for k in missing if not (k == "lm_head.weight" and config.tie_word_embeddings)]
    if missing or unexpected:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def as_transformers_4(folder):
    """Rewrites config.json with the keys of transformers 4, which most published folders have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.56.2"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
