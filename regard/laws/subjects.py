"""What the laws are tried on: every part and every system, each in its variants, all of them tiny.

Nothing is listed here by hand. A part is found in the catalogue, made with its default options and put where
its family belongs in a small model, so that whatever holds for models is asked of every part that is ever
registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import torch
from torch import nn

from regard.dims import Dims
from regard.errors import CheckFailed, UsageError
from regard.model import Decoder, Encoder, EncoderDecoder, Model, build
from regard.nn.block import Block, Serial
from regard.nn.compress import Compress
from regard.nn.embed import Embed, Tokens
from regard.nn.ffn import FFN, Dense
from regard.nn.head import Head, Linear, Pooled
from regard.nn.init import Init
from regard.nn.mixer import Attention, Mixer
from regard.nn.norm import Layer, Norm
from regard.nn.pattern import Causal, Full, Pattern
from regard.nn.position import Learned, Position
from regard.nn.residual import Add, Residual
from regard.nn.score import Dot, Score
from regard.nn.stack import Sequential, Stack
from regard.spec import PARTS, Recipe, kind_of, kinds, of, takes, takes_dims
from regard.systems import SYSTEMS, recipe

M = TypeVar("M", bound=nn.Module)
DIMS = {"width": 16, "heads": 4, "layers": 2, "length": 48}
NUMBERS = {
    "vocab": 13,
    "classes": 3,
    "width": 5,
    "size": 5,
    "keys": 5,
    "ramp": 4,
    "chunk": 5,
}  # small against what they meet
FAMILIES: tuple[type, ...] = (
    *(Block, Compress, Embed, FFN, Head, Init, Mixer, Norm, Pattern, Position, Residual, Score, Stack),
)


def parts() -> list[type]:
    """Every registered part of a network. A model is met as the systems that are made of it."""
    return [c for c in PARTS if (takes_dims(c) or issubclass(c, Init)) and not issubclass(c, Model)]


def example(make: Callable[..., Any], **options: Any) -> Recipe[Any]:
    """A part with its defaults; what has none is made up from its annotation. Mixers look back only."""
    given: dict[str, Any] = {}
    for name, parameter in takes(make).items():
        if name in NUMBERS:
            given[name] = NUMBERS[name]
        elif name == "pattern" and inspect.isclass(make) and issubclass(make, Mixer):
            given[name] = of(Causal)
        elif parameter.default is inspect.Parameter.empty:
            given[name] = _made_up(parameter.annotation)
    return Recipe(make, {**given, **options})


def variants(make: Callable[..., Any], most: int = 99) -> Iterator[dict[str, Any]]:
    """No option changed; then one at a time: every other word of a choice of at most `most`, every switch."""
    yield {}
    for name, parameter in takes(make).items():
        hint, choices = parameter.annotation, tuple[Any, ...]()
        if get_origin(hint) is Literal:
            choices = get_args(hint)
        elif hint is bool:
            choices = (False, True)
        if len(choices) <= most:
            yield from ({name: word} for word in choices if word != parameter.default)


def host(part: Recipe[Any]) -> Recipe[Model]:
    """A small model in which this part does its work; whatever cannot look back only stands in an encoder."""
    if not any(issubclass(_class(part), family) for family in FAMILIES):
        raise CheckFailed(
            f"Every family must have its place in a model, but {kind_of(part.make)!r} has none: "
            "say in regard/laws/subjects.py where it stands."
        )

    def own(family: type, usual: Recipe[Any]) -> Recipe[Any]:
        return part if issubclass(_class(part), family) else usual

    squeeze = part if issubclass(_class(part), Compress) else None
    pattern = own(Pattern, of(Full) if _looks_ahead(part) else of(Causal))
    ffn = own(FFN, of(Dense, hidden=24, activation="gelu"))
    usual = of(Attention, score=own(Score, of(Dot)), pattern=pattern, compress=squeeze)
    reads = bool(part.options.get("cross"))
    bodies = {"self": usual if reads else own(Mixer, usual), **({"cross": part} if reads else {}), "ffn": ffn}
    norm, residual = own(Norm, of(Layer)), own(Residual, of(Add))
    block = own(Block, of(Serial, sublayers=bodies, norm=norm, residual=residual))
    stack = own(Stack, of(Sequential, block=block, position=own(Position, of(Learned))))
    embed, head = own(Embed, example(Tokens)), own(Head, example(Linear))
    init = part if issubclass(_class(part), Init) else None
    if reads:
        reader = of(Sequential, block=of(Serial, sublayers={"self": of(Attention), "ffn": ffn}))
        whole: Recipe[Model] = of(
            EncoderDecoder, embed=embed, encoder=reader, decoder=stack, head=head, tied="none", init=init
        )
    elif _looks_ahead(part) or issubclass(_class(head), Pooled):
        whole = of(Encoder, embed=embed, stack=stack, head=head, tied=False, init=init)
    else:
        whole = of(Decoder, embed=embed, stack=stack, head=head, tied=False, init=init)
    return whole.but(dims=dict(DIMS))


def hosts(part: type) -> dict[str, Recipe[Model]]:
    """A part in each of its variants, each in a model of its own, by what was changed."""
    return {_spell(change): host(example(part, **change)) for change in variants(part)}


def systems() -> dict[str, dict[str, Recipe[Model]]]:
    """Every system, in each of its variants, by what was changed."""
    found: dict[str, dict[str, Recipe[Model]]] = {}
    for name, system in SYSTEMS.items():
        numbers = {n: v for n, v in NUMBERS.items() if n in takes(system.make)}
        plain = {**DIMS, **numbers, **({"dropout": 0.0} if "dropout" in takes(system.make) else {})}
        changes = variants(system.make, most=4)
        found[name] = {_spell(change): recipe(name, **{**plain, **change}) for change in changes}
    return found


def positions() -> dict[str, Recipe[Position] | None]:
    """Every scheme of positions in its variants, and none at all."""
    found: dict[str, Recipe[Position] | None] = {"none": None}
    for kind, part in kinds(Position).items():
        for change in variants(part):
            found[f"{kind} {_spell(change)}".strip()] = example(part, **change)
    return found


def together(
    position: Recipe[Position] | None,
    pattern: Recipe[Pattern] = of(Causal),
    score: Recipe[Score] = of(Dot),
    groups: int | None = None,
    stack: type = Sequential,
) -> Recipe[Model]:
    """A small decoder of this position, pattern, score and stack."""
    attention = of(Attention, pattern=pattern, score=score, groups=groups)
    block = of(Serial, sublayers={"self": attention, "ffn": of(Dense, hidden=16)})
    body: Recipe[Stack] = Recipe(stack, {"block": block, "position": position})
    whole = of(Decoder, embed=example(Tokens), stack=body, head=example(Linear))
    return whole.but(dims={**DIMS, "layers": 1})


def lively(recipe: Recipe[Model], seed: int = 0) -> Model:
    """The model with weights so large that a wrong key, place or shift shows in every answer.

    Newborn weights are so small that much of what could be wrong hides below any bound.
    """
    return enlivened(build(recipe, seed).eval(), seed)


def enlivened(module: M, seed: int = 0) -> M:
    """The module with its weights drawn anew, large; no bias is left at zero and no scale at one."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            noise = torch.randn(p.shape, generator=random)
            p.copy_(1.3 * noise / p.shape[-1] ** 0.5 if p.ndim > 1 else p + 0.3 * noise)
    return module


def attentions(model: nn.Module) -> list[Attention]:
    """All attentions, in order."""
    return [m for m in model.modules() if isinstance(m, Attention)]


def writes(model: nn.Module) -> bool:
    """No mixer says of itself that later tokens change what earlier ones see."""
    return all(getattr(m, "causal", True) for m in model.modules() if isinstance(m, Mixer))


def _looks_ahead(part: Recipe[Any]) -> bool:
    if issubclass(_class(part), Compress):
        try:
            part.build(Dims(**DIMS)).check(Causal(Dims(**DIMS)))
        except UsageError:
            return True
    if not issubclass(_class(part), Pattern | Mixer):
        return False
    return not getattr(part.build(Dims(**DIMS)), "causal", True)


def _class(part: Recipe[Any]) -> type:
    return cast(type, part.make)


def _demands(make: Callable[..., Any]) -> int:
    return sum(p.default is inspect.Parameter.empty for p in takes(make).values())


def _spell(change: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in change.items())


def _made_up(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _made_up(inner[0])
    if origin is Recipe:
        families = get_args(inner[0]) or inner
        return example(min(kinds(families[0]).values(), key=_demands))
    if origin is dict:
        (body,) = get_args(inner[1])
        return {f.__name__.lower(): _made_up(Recipe[f]) for f in get_args(body) or (body,)}  # type: ignore[valid-type]
    if origin in (list, tuple):
        return origin([_made_up(inner[0])])
    if origin is Literal:
        return inner[0]
    return {int: 8, float: 0.5, bool: True, str: "text"}[hint]
