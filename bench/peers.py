"""The other libraries, set up for the same shapes.

Each is imported where it is used: a missing one is said, and is not fatal.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.nn.position.sinusoidal import waves


def _quiet() -> None:
    """What transformers has to say about models without a tokenizer does not belong into a table."""
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module=r"transformers|torch|x_transformers")


def regard_gpt(vocab: int, width: int, heads: int, layers: int, length: int) -> Any:
    """regard's GPT-2, with the activation that x-transformers and torch.nn have."""
    sizes = {"vocab": vocab, "width": width, "heads": heads, "layers": layers, "length": length}
    return regard.build(regard.system("gpt", activation="gelu", dropout=0.0, **sizes), seed=0)


@cache
def hf_gpt(vocab: int, width: int, heads: int, layers: int, length: int) -> Any:
    """transformers' GPT-2 without dropout, with the same activation."""
    _quiet()
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab,
        n_embd=width,
        n_head=heads,
        n_layer=layers,
        n_positions=length,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=True,
    )
    return GPT2LMHeadModel(config)


def x_gpt(vocab: int, width: int, heads: int, layers: int, length: int) -> Any:
    """x-transformers' decoder with the same sizes, tied, with the fused kernel."""
    _quiet()
    from x_transformers import Decoder, TransformerWrapper

    stack = Decoder(dim=width, depth=layers, heads=heads, attn_dim_head=width // heads, attn_flash=True)
    return TransformerWrapper(num_tokens=vocab, max_seq_len=length, attn_layers=stack, tie_embedding=True)


class TorchGpt(nn.Module):
    """The same with torch.nn.TransformerEncoder and a causal mask."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.stack = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids_BL: Tensor) -> Tensor:
        """Logits."""
        length = ids_BL.shape[1]
        x_BLD = self.tokens(ids_BL) + self.places.weight[:length]
        x_BLD = self.stack(x_BLD, mask=self.mask[:length, :length], is_causal=True)
        return x_BLD @ self.tokens.weight.T


def regard_translator(vocab: int, width: int, heads: int, layers: int, hidden: int, length: int) -> Any:
    """regard's Transformer, post-norm, one matrix three ways."""
    sizes = {"width": width, "heads": heads, "layers": layers, "length": length}
    return regard.build(
        regard.system("vanilla", vocab=vocab, hidden=hidden, dropout=0.0, **sizes), seed=0
    ).eval()


@cache
def hf_marian(vocab: int, width: int, heads: int, layers: int, hidden: int, length: int) -> Any:
    """transformers' Marian: post-norm, sinusoidal, one matrix three ways. The last token is padding."""
    _quiet()
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        max_position_embeddings=length,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        pad_token_id=vocab - 1,
        decoder_start_token_id=vocab - 1,
        eos_token_id=1,
        bos_token_id=None,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).eval()


def m2m_of(
    model: Any,
    start: int,
    end: int,
    vocab: int,
    width: int,
    heads: int,
    layers: int,
    hidden: int,
    length: int,
) -> Any:
    """M2M100 of transformers with the weights and sinusoids of regard's Transformer, pre-norm as both are."""
    _quiet()
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    config = M2M100Config(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        max_position_embeddings=length,
        decoder_start_token_id=start,
        eos_token_id=end,
    )
    theirs, own = M2M100ForConditionalGeneration(config).eval(), model.state_dict()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            weight.copy_(_rows(own, name))
    for stack in (theirs.model.encoder, theirs.model.decoder):
        places = stack.embed_positions
        places.offset, places.padding_idx = 0, -1  # the first token stands at 0
        places.weights = waves(torch.arange(length), width)
    return theirs


def _rows(own: dict[str, Tensor], name: str) -> Tensor:
    """What transformers calls so, among ours: queries, keys and values are one matrix here."""
    if name == "model.shared.weight":
        return own["embed.weight"]
    _, stack, kind, *rest, end = name.split(".")
    if kind == "layer_norm":
        return own[f"{stack}.leave.{end}"]
    depth, what, *kinds = rest
    at = f"{stack}.blocks.{depth}.sublayers"
    if what in ("fc1", "fc2"):
        return own[f"{at}.ffn.body.{'up' if what == 'fc1' else 'down'}.{end}"]
    side = {"self": "self", "encoder": "cross", "final": "ffn"}[what.split("_")[0]]
    if not kinds:
        return own[f"{at}.{side}.norm.{end}"]
    letter = kinds[0].removesuffix("_proj")
    group = letter if letter == "out" else "qkv" if side == "self" else "q" if letter == "q" else "kv"
    rows = own[f"{at}.{side}.body.{group}.{end}"]
    return rows if letter == "out" else rows.chunk(len(group))[group.index(letter)]


def joey(
    pairs: list[Any],
    tokens: int,
    smoothing: float,
    vocab: int,
    width: int,
    heads: int,
    layers: int,
    hidden: int,
    length: int,
) -> tuple[Any, list[Any]]:
    """JoeyNMT's trainer, and its batches of these pairs: post-norm, sinusoidal, one matrix three ways.

    Set up its own way, from a configuration and files of text. Its batches are what its users get: shuffled,
    not sorted, `tokens` on the longer side, padding included. It ends each sentence itself, so the last word
    of each is left out: as many tokens as the others learn. `length` is of no use to it.
    """
    logging.disable(logging.INFO)
    from joeynmt.config import parse_global_args
    from joeynmt.prediction import prepare
    from joeynmt.training import TrainManager

    stack = {"type": "transformer", "num_layers": layers, "num_heads": heads, "hidden_size": width}
    stack |= {"ff_size": hidden, "dropout": 0.0, "layer_norm": "post"}
    stack["embeddings"] = {"embedding_dim": width, "scale": True}
    with tempfile.TemporaryDirectory(prefix="regard-bench-") as name:
        folder = Path(name)
        files = {"train.source": [], "train.target": [], "words": words(list(range(3, vocab - 1)))}
        for pair in pairs:
            for side, row in zip(("train.source", "train.target"), pair, strict=True):
                files[side].append(" ".join(words(row[:-1])))
        for file, lines in files.items():
            (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        side = {"level": "word", "voc_file": str(folder / "words")}  # and its four special words
        config = {
            "name": "bench",
            "model_dir": name,
            "use_cuda": False,
            "data": {
                "train": str(folder / "train"),
                "src": side | {"lang": "source"},
                "trg": side | {"lang": "target"},
            },
            "training": {
                "optimizer": "adamw",
                "learning_rate": 1e-4,
                "scheduling": "exponential",  # it must have one; this one moves between epochs
                "weight_decay": 0.01,
                "clip_grad_norm": 1.0,
                "normalization": "tokens",
                "label_smoothing": smoothing,
                "batch_type": "token",
                "batch_size": tokens,
            },
            "testing": {},
            "model": {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True},
        }
        args = parse_global_args(config)
        model, data, _, _ = prepare(args, 0, "train")
        trainer = TrainManager(
            0, model, folder, args.device, autocast=args.autocast, seed=args.seed, train_args=args.train
        )
        trainer.tb_writer.close()
    loader = data.make_iter(
        args.train.batch_size,
        args.train.batch_type,
        args.seed,
        args.train.shuffle,
        pad_index=model.pad_index,
        eos_index=model.eos_index,
    )
    return trainer, [batch for batch in loader]  # noqa: C416 (list asks for a length, and it has none)


def words(ids: list[int]) -> list[str]:
    """CTranslate2 and JoeyNMT speak in strings."""
    return [f"w{token}" for token in ids]


def ctranslate2_of(
    model: Any,
    loader: str,
    threads: int,
    kind: str = "float32",
    side: int = 1,
    marks: tuple[int, int] = (1, 1),
) -> Any:
    """A CTranslate2 generator or translator with the weights of a transformers model.

    `side` batches are answered side by side, `threads` threads each. Answers begin and end with `marks`.
    """
    import ctranslate2
    from ctranslate2.converters import transformers as converters

    with torch.no_grad():
        spec = getattr(converters, loader)().get_model_spec(model)
    seq2seq = hasattr(spec, "encoder")
    padding = loader == "MarianMTLoader"  # its last token, which the converter leaves out
    names = words(list(range(model.config.vocab_size - padding)))
    if seq2seq:
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
    else:
        spec.register_vocabulary(names)
    start, end = words(list(marks))
    spec.config.eos_token, spec.config.unk_token, spec.config.bos_token = end, "w2", "w0"
    if seq2seq:
        spec.config.decoder_start_token = start
    spec.validate()
    spec.optimize(quantization=kind)
    writer = ctranslate2.Translator if seq2seq else ctranslate2.Generator
    with tempfile.TemporaryDirectory(prefix="regard-bench-") as folder:  # read once, when it is made
        spec.save(folder)
        return writer(folder, device="cpu", inter_threads=side, intra_threads=threads, compute_type=kind)
