"""What a model costs, before anything is trained: parameters, FLOPs a token, cache and activation bytes.

The model is built and run once with tensors that have shapes but no numbers, so that the largest one takes a
second and no memory. Parameters and matrix products are counted, not estimated. The cache follows the formula

    bytes = 2 (keys and values) x batch x tokens x groups x head x layers x bytes of a number

where a sliding window keeps at most its width of tokens, cross-attention keeps the source's tokens, and
folded keys are fewer. In int8 a number takes one byte, and each vector two more for its scale. A memory over
segments keeps what each layer read while it is trained, keys and values after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import UsageError
from regard.hollow import shapes_only
from regard.model import Encoder, EncoderDecoder, Model
from regard.nn.cache import Precision as Held
from regard.nn.embed import Embed
from regard.nn.head import Pooled
from regard.nn.mixer import Attention, Latent, Lsh
from regard.nn.position import Position
from regard.run import SECTIONS, read_run
from regard.spec import Recipe

BYTES = {"fp32": 4, "bf16": 2}
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model learns; a matrix that is shared is counted once."""

    total: int
    embedding: int

    @property
    def body(self) -> int:
        """All but the tables of tokens and positions."""
        return self.total - self.embedding


@dataclass(frozen=True)
class Cost:
    """What a model costs for `batch` sequences of `length` tokens (and sources as long, if it reads any)."""

    name: str
    kind: str
    parameters: Parameters
    batch: int
    length: int
    precision: Precision
    weights: int
    cache: int
    cache_formula: str
    flops: int
    activations: int
    memory: int = 0
    memory_formula: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """For --json."""
        return {
            "name": self.name,
            "kind": self.kind,
            "parameters": self.parameters.total,
            "embedding_parameters": self.parameters.embedding,
            "batch": self.batch,
            "length": self.length,
            "precision": self.precision,
            "weight_bytes": self.weights,
            "cache_bytes": self.cache,
            "flops_per_token": self.flops,
            "training_flops_per_token": 3 * self.flops,
            "activation_bytes": self.activations,
            "memory_bytes": self.memory,
        }


def cost_of(
    source: str | Path,
    overrides: Sequence[str] = (),
    batch: int = 1,
    length: int | None = None,
    precision: Precision = "bf16",
    cache: Held = "full",
    memory: int = 0,
) -> Cost:
    """The cost of a run file's model, or of a system by its name: `cost_of("gpt", ["size=xl"])`."""
    name, recipe = _find(source, overrides)
    return cost(recipe, batch, length, precision, name, cache, memory)


def cost(
    recipe: Recipe[Model],
    batch: int = 1,
    length: int | None = None,
    precision: Precision = "bf16",
    name: str = "model",
    cache: Held = "full",
    memory: int = 0,
) -> Cost:
    """The cost of a recipe; with `cache` int8, generation keeps its keys and values in bytes; with `memory`,
    it is trained on segments and remembers so many tokens before each.
    """
    with shapes_only(torch.bfloat16 if precision == "bf16" else torch.float32):
        model = recipe.build()
        count = parameters(model)
        length = length or model.dims.length
        flops, activations = _flops(model, batch, length), _activations(model, batch, length)
    caches = cache_bytes(model, batch, length, precision, cache)
    carried = memory_bytes(model, batch, memory, precision) if memory else []
    return Cost(
        name=name,
        kind=type(model).__name__,
        parameters=count,
        batch=batch,
        length=length,
        precision=precision,
        weights=count.total * BYTES[precision],
        cache=sum(bytes_ for _, bytes_ in caches),
        cache_formula=" + ".join(text for text, _ in caches) or "none: an encoder remembers nothing",
        flops=flops // (batch * length),
        activations=activations,
        memory=sum(bytes_ for _, bytes_ in carried),
        memory_formula=" + ".join(text for text, _ in carried),
    )


def parameters(model: nn.Module) -> Parameters:
    """Every learned number once."""
    total = {id(p): p.numel() for p in model.parameters()}
    tables = [p for m in model.modules() if isinstance(m, Embed | Position) for p in m.parameters()]
    return Parameters(sum(total.values()), sum({id(p): p.numel() for p in tables}.values()))


def cache_bytes(
    model: Model, batch: int, length: int, precision: Precision = "bf16", cache: Held = "full"
) -> list[tuple[str, int]]:
    """What generation remembers after `length` tokens: (formula in words, bytes) for each kind of layer.

    Layers that remember alike are one line; their number stands in the formula.
    """
    if isinstance(model, Encoder):
        return []
    kinds: dict[Kept, int] = {}
    for path, module in model.named_modules():
        for kept in _kept(module, length) if not path.startswith("encoder") else ():
            kinds[kept] = kinds.get(kept, 0) + 1
    return [kept.count(batch, layers, BYTES[precision], cache == "int8") for kept, layers in kinds.items()]


def memory_bytes(
    model: Model, batch: int, memory: int, precision: Precision = "bf16", states: bool = True
) -> list[tuple[str, int]]:
    """What a memory over segments holds of the last `memory` tokens: states, or keys and values."""
    kinds: dict[Kept, int] = {}
    for module in model.modules():
        if isinstance(module, Attention) and not module.cross:
            columns = min(memory, (module.pattern.reach or memory + 1) - 1)
            pair = 1, (module.qkv.in_features,)
            kept = Kept("tokens", columns, *(pair if states else (module.groups, (module.size,) * 2)))
            kinds[kept] = kinds.get(kept, 0) + 1
    return [kept.count(batch, layers, BYTES[precision], False) for kept, layers in kinds.items()]


@dataclass(frozen=True)
class Kept:
    """What a layer keeps: for each column and group, vectors of these widths; whole numbers take 4 bytes."""

    what: str
    columns: int
    groups: int
    widths: tuple[int, ...]
    whole: bool = False

    def count(self, batch: int, layers: int, size: int, packed: bool) -> tuple[str, int]:
        """The formula in words, and the bytes."""
        size, scale = (4, 0) if self.whole else (1, 2) if packed else (size, 0)
        width = sum(self.widths) + scale * len(self.widths)
        pair = len(self.widths) == 2 and self.widths[0] == self.widths[1]
        one = f"{self.widths[0]} head" if pair else " + ".join(map(str, self.widths))
        one += f" + {scale if pair else scale * len(self.widths)} scale" if scale else ""
        many = [
            "2" if pair else "",
            f"{batch} x {self.columns} {self.what}",
            f"{self.groups} groups" if pair or self.groups > 1 else "",
            f"({one})" if " + " in one else one,
            f"{layers} layers",
            f"{size} byte{'s' * (size > 1)}",
        ]
        text = " x ".join(word for word in many if word)
        return text, batch * self.columns * self.groups * width * layers * size


def _kept(module: nn.Module, length: int) -> Iterator[Kept]:
    """What a mixer keeps after `length` tokens; nothing for whatever else a module is."""
    if isinstance(module, Attention) and module.compress is not None:
        yield Kept("tokens", module.compress.columns(length), module.groups, (module.size,) * 2)
    elif isinstance(module, Attention):
        reach = None if module.cross else module.pattern.reach
        what = "source tokens" if module.cross else "tokens"
        yield Kept(what, min(length, reach or length), module.groups, (module.size,) * 2)
    elif isinstance(module, Latent):
        yield Kept("tokens", min(length, module.pattern.reach or length), 1, (module.rank, module.shared))
    elif isinstance(module, Lsh):
        yield Kept("tokens", length, module.heads, (module.size,) * 2)
        yield Kept("buckets", length, module.heads, (module.rounds,), whole=True)


def table(found: Cost) -> str:
    """For people."""
    p = found.parameters
    both = " (and sources as long)" if found.kind == "EncoderDecoder" else ""
    carried = f"  memory        {_human(found.memory):>18}   {found.memory_formula}"
    return "\n".join(
        [
            f"{found.name}   {found.kind}   {found.batch} x {found.length} tokens{both}, {found.precision}",
            f"  parameters    {p.total:>18,}   {p.embedding:,} of them in tables of tokens and positions",
            f"  weights       {_human(found.weights):>18}",
            f"  forward       {_human_flops(found.flops):>18}   a token; training about three times that",
            f"  cache         {_human(found.cache):>18}   {found.cache_formula}",
            f"  activations   {_human(found.activations):>18}   kept for the backward pass",
            *([carried] if found.memory else []),
        ]
    )


def _find(source: str | Path, overrides: Sequence[str]) -> tuple[str, Recipe[Model]]:
    """The recipe of a run file, of a run folder, or of a system by its name."""
    from regard.launch import prepare
    from regard.systems import SYSTEMS

    # `size=xl` means model.size=xl: there is nothing else to change here
    full = [o if o.split(".")[0].split("=")[0] in SECTIONS else f"model.{o}" for o in overrides]
    if str(source) in SYSTEMS and not Path(source).is_file():
        run = read_run({"model": {"system": str(source)}}, full)
        return str(source), run.recipe()
    if not Path(source).exists():
        raise UsageError(
            f"{source} is neither a run file nor a system; systems: {', '.join(sorted(SYSTEMS))}."
        )
    run = read_run(source, full)
    if run.task is None or "kind" in run.model:
        return run.name, run.recipe()
    return run.name, prepare(run, None)[1]


def _flops(model: Model, batch: int, length: int) -> int:
    """FLOPs of the matrix products of a forward pass."""
    own: Any = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with FlopCounterMode(display=False, custom_mapping=own) as counter, torch.no_grad():
        _forward(model.eval(), batch, length)
    return int(counter.get_total_flops())


def _activations(model: Model, batch: int, length: int) -> int:
    """Bytes that a forward pass keeps for the backward pass, weights not counted, each storage once."""
    weights = {_storage(p) for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in weights:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = _forward(model.train(), batch, length)  # held, so that no storage is freed and counted twice
    del logits
    return sum(kept.values())


def _forward(model: Model, batch: int, length: int) -> Tensor:
    ids_BL = torch.zeros(batch, length, dtype=torch.long)
    if isinstance(model, EncoderDecoder):
        pos_BL = torch.arange(length).expand(batch, length)
        x_BLD = model.states(ids_BL, memory=model.encode(ids_BL, pos_BL))
    else:
        x_BLD = model.states(ids_BL)  # type: ignore[operator]
    logits: Tensor = model.head(x_BLD, None) if isinstance(model.head, Pooled) else model.head(x_BLD)
    return logits


def _attention_flops(q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, **_: Any) -> int:
    """Two products over all pairs of query and key; half of the pairs where the kernel skips the future."""
    batch, heads, queries, head = q
    pairs = queries * (queries + 1) // 2 if causal else queries * k[2]
    return int(batch * heads * pairs * 2 * (head + v[3]))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _human(size: int) -> str:
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= step:
            return f"{size / step:,.5g} {unit}"
    return f"{size} bytes"


def _human_flops(count: int) -> str:
    for unit, step in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= step:
            return f"{count / step:,.4g} {unit}"
    return f"{count} FLOP"
