"""Recipes as data: read back as written, and all that is wrong said at once, where it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.catalogue import registered
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws.subjects import example, systems, variants
from regard.model import Decoder, Model, build
from regard.nn.block import Block, Serial
from regard.nn.ffn import FFN, Chunked, Dense, Gated
from regard.nn.head import Head
from regard.nn.mixer import Attention, Mixer
from regard.nn.norm import Layer, Rms
from regard.nn.pattern import AllOf, Causal, Full, Pattern, PerHead, Prefix, Window
from regard.nn.position import Learned, Position, Rotary, T5Bias
from regard.nn.residual import Scaled
from regard.nn.score import Dot, Score
from regard.nn.stack import Sequential, Stack
from regard.spec import Recipe, SpecError, kind_of, kinds, of, part, read, takes, takes_dims, write


def problems(family: type, data: Any, path: str = "") -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        read(family, data, path)
    found = dict(caught.value.problems)
    assert len(found) == len(caught.value.problems), "one problem a path"
    return found


# ---- reading


def test_a_name_is_a_recipe_without_options() -> None:
    assert read(Position, "rotary") == of(Rotary) == read(Position, {"kind": "rotary"})
    assert read(Position, {"kind": "rotary", "base": 5e5}) == of(Rotary, base=500_000.0)
    assert read(Position, of(Rotary)) == of(Rotary)


def test_kinds_are_names_of_classes_in_snake_case() -> None:
    assert kind_of(T5Bias) == "t5_bias" and kind_of(AllOf) == "all_of" and kind_of(Dense) == "dense"
    assert kinds(Position)["t5_bias"] is T5Bias
    assert set(kinds(FFN)) == {"dense", "gated", "chunked"}
    names = [kind_of(c) for c in kinds(Pattern).values()]
    assert len(set(names)) == len(names)


def test_a_family_with_a_usual_kind_needs_none() -> None:
    assert read(Block, {"sublayers": {}}) == of(Serial, sublayers={}), "a family of one"
    assert read(Mixer, {"groups": 2}) == of(Attention, groups=2)
    assert read(Score, {"scale": 1.0}) == of(Dot, scale=1.0)
    assert problems(FFN, {"hidden": 2}) == {"kind": "must be given"}


def test_nested_recipes_lists_and_mappings() -> None:
    data = {
        "kind": "sequential",
        "position": "learned",
        "block": [
            {"sublayers": {"self": {"kind": "attention", "pattern": "causal"}, "ffn": "dense"}},
            {
                "kind": "serial",
                "sublayers": {"ffn": {"kind": "chunked", "body": {"kind": "gated"}}},
                "norm": "rms",
            },
        ],
    }
    recipe = read(Stack, data)
    wanted = of(
        Sequential,
        position=of(Learned),
        block=[
            of(Serial, sublayers={"self": of(Attention, pattern=of(Causal)), "ffn": of(Dense)}),
            of(Serial, sublayers={"ffn": of(Chunked, body=of(Gated))}, norm=of(Rms)),
        ],
    )
    assert recipe == wanted
    built = recipe.build(Dims(width=8, heads=2, layers=3))
    assert [len(b.sublayers) for b in built.blocks] == [2, 1, 2]  # type: ignore[attr-defined]


def test_numbers_of_a_sub_recipe_replace_its_parents_from_there_down() -> None:
    data = {"block": {"sublayers": {"ffn": "dense"}, "dims": {"heads": 4}}, "dims": {"layers": 3}}
    stack = read(Stack, data).build(Dims(width=8, heads=2, layers=7))
    assert len(stack.blocks) == 3  # type: ignore[arg-type]
    inner = of(Serial, sublayers={"self": of(Attention)}, dims={"heads": 4, "head": 3})  # type: ignore[call-arg]
    attention = inner.build(Dims(width=8, heads=2)).sublayers["self"].body
    assert (attention.heads, attention.size) == (4, 3)  # type: ignore[union-attr]
    again = of(Serial, sublayers={"self": of(Attention)}, dims={"head": None})  # type: ignore[call-arg]
    attention = again.build(Dims(width=8, heads=2, head=3)).sublayers["self"].body
    assert attention.size == 4, "null takes width / heads again"  # type: ignore[union-attr]


def test_dims_as_an_object_read_back_the_same() -> None:
    recipe = of(Dense, dims=Dims(width=8))  # type: ignore[call-arg]
    for resolved in (False, True):
        again = read(FFN, write(recipe, resolved))
        assert again.build(Dims(width=99, layers=5)).up.in_features == 8  # type: ignore[union-attr]
    assert read(FFN, write(recipe)) == recipe
    assert json.loads(json.dumps(write(recipe))) == write(recipe)


def test_a_recipe_needs_numbers_from_somewhere() -> None:
    for recipe in (of(Dense), of(Dense, dims={"layers": 3})):  # type: ignore[call-arg]
        with pytest.raises(UsageError, match=r"Dense must be given dims: build\(Dims\(width=\.\.\.\)\)"):
            recipe.build()


# ---- what is wrong, all of it, and where


def test_all_problems_at_once_with_their_paths() -> None:
    data = {
        "kind": "decoder",
        "embed": {"kind": "tokens", "vocab": "8"},
        "stack": {
            "block": {
                "sublayers": {
                    "self": {"kind": "atention"},
                    "ffn": {"kind": "gated", "hiden": 3, "activation": "swiglu", "bias": 1},
                },
                "norm": {"kind": "layer", "eps": True},
                "order": "before",
                "dropout": "0.1",
            },
            "position": {"kind": "rotary", "base": None},
            "leave": "sometimes",
            "dims": {"layer": 3, "heads": 0, "width": "64"},
        },
        "head": {},
        "tied": "yes",
        "colour": "blue",
    }
    found = problems(Model, data, "model")
    wanted = {
        "model.embed.vocab": "must be a whole number, but '8' was given.",
        "model.stack.block.sublayers.self": "no mixer or ffn is called 'atention'. Did you mean 'attention'?",
        "model.stack.block.sublayers.ffn.hiden": "FFN 'gated' has no option 'hiden'. Did you mean 'hidden'?",
        "model.stack.block.sublayers.ffn.activation": "must be one of relu, gelu,",
        "model.stack.block.sublayers.ffn.bias": "must be true or false, but 1 was given.",
        "model.stack.block.norm.eps": "must be a number, but True was given.",
        "model.stack.block.order": "must be one of pre, post, but 'before' was given.",
        "model.stack.block.dropout": "must be a number, but '0.1' was given.",
        "model.stack.position.base": "must be a number, but None was given.",
        "model.stack.leave": "must be",
        "model.stack.dims.layer": "dims has no number 'layer'. Did you mean 'layers'?",
        "model.stack.dims.heads": "must be a whole number of at least 1, but 0 was given.",
        "model.stack.dims.width": "must be a whole number of at least 1, but '64' was given.",
        "model.head.kind": "must be given",
        "model.tied": "must be true or false, but 'yes' was given.",
        "model.colour": "Model 'decoder' has no option 'colour'.",
    }
    assert found.keys() == wanted.keys()
    for path, words in wanted.items():
        assert found[path].startswith(words), (path, found[path])


def test_the_message_is_one_line_a_problem() -> None:
    with pytest.raises(SpecError) as caught:
        read(FFN, {"kind": "dense", "hiden": 1, "bias": 0}, "model.ffn")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2 and all(line.startswith("model.ffn.") for line in lines)
    assert isinstance(caught.value, UsageError) and caught.value.code == 2


@pytest.mark.parametrize(
    ("family", "data", "path"),
    [
        (Position, "rotray", ""),
        (Position, {"kind": "rotray"}, ""),
        (Position, {"kind": ["rotary"]}, ""),
        (Position, {"kind": 5}, ""),
        (Position, 5, ""),
        (Position, None, ""),
        (Position, ["rotary"], ""),
        (Position, {}, "kind"),
        (Position, {"kind": "rotary", 5: 1}, "5"),
        (Head, {"kind": "linear"}, "vocab"),
        (Mixer, {"kind": "attention", "groups": 2.0}, "groups"),
        (Mixer, {"kind": "attention", "groups": True}, "groups"),
        (Mixer, {"kind": "attention", "cross": "false"}, "cross"),
        (Mixer, {"kind": "attention", "pattern": "rotary"}, "pattern"),
        (Mixer, {"kind": "attention", "pattern": None}, "pattern"),
        (Mixer, {"kind": "attention", "score": {"kind": "dot", "scale": "big"}}, "score.scale"),
        (Mixer, {"kind": "attention", "dims": 5}, "dims"),
        (Mixer, {"kind": "attention", "dims": {"length": None}}, "dims.length"),
        (Pattern, {"kind": "all_of"}, "patterns"),
        (Pattern, {"kind": "all_of", "patterns": "causal"}, "patterns"),
        (Pattern, {"kind": "all_of", "patterns": ["causal", "windw"]}, "patterns.1"),
        (Pattern, {"kind": "all_of", "patterns": [{"kind": "window", "width": "5"}]}, "patterns.0.width"),
        (Block, {"sublayers": ["attention"]}, "sublayers"),
        (Block, {"sublayers": {"self": {"kind": "rotary"}}}, "sublayers.self"),
        (Block, {"sublayers": {"self": 7}}, "sublayers.self"),
        (Stack, {"block": [{"sublayers": {"a": "dens"}}]}, "block.0.sublayers.a"),
        (Stack, {"block": {"sublayers": {"a": "dense"}}, "position": "rotray"}, "position"),
        (Stack, {"block": {"sublayers": {"a": "dense"}}, "leave": {"kind": "rms", "epss": 1}}, "leave.epss"),
    ],
)
def test_a_value_that_does_not_fit_is_named(family: type, data: Any, path: str) -> None:
    """true is no number, "8" is not 8, 2.0 is not 2; and nothing but SpecError comes out of bad data."""
    assert list(problems(family, data)) == [path]


def test_suggestions() -> None:
    assert "Did you mean 'rotary'? Known: adaptive_span, " in problems(Position, "rotray")[""]
    assert (
        "Did you mean 'window'?" in problems(Pattern, {"kind": "all_of", "patterns": ["windw"]})["patterns.0"]
    )
    assert "Did you mean" not in problems(Position, "zzzzzz")[""]
    with pytest.raises(SpecError, match=r"Dense has no option 'hiden'\. Did you mean 'hidden'\? It takes: "):
        of(Dense, hiden=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="name every option"):
        of(Dense, 3)


def test_a_family_is_called_by_its_own_name() -> None:
    """A class in between (patterns that are joined of others) is no family."""
    found = problems(Pattern, {"kind": "per_head", "patterns": [], "head": 3})
    assert found["head"].startswith("Pattern 'per_head' has no option 'head'.")


def test_a_recipe_of_another_family_is_refused() -> None:
    assert problems(Position, of(Dense)) == {"": problems(Position, "dense")[""]}
    found = problems(Block, {"sublayers": {"self": of(Rotary), "ffn": of(Gated)}})
    assert (
        list(found) == ["sublayers.self"] and "no mixer or ffn is called 'rotary'" in found["sublayers.self"]
    )
    with pytest.raises(SpecError, match=r"model\.position: no position is called 'dense'"):
        regard.system("gpt", vocab=5, width=8, position=of(Dense))
    assert read(Mixer, of(Attention)) == of(Attention)


def test_numbers_are_numbers() -> None:
    recipe = read(Position, {"kind": "rotary", "base": 7})
    assert recipe.options["base"] == 7.0 and isinstance(recipe.options["base"], float)
    assert read(FFN, {"kind": "dense", "hidden": None}) == of(Dense, hidden=None)


# ---- writing


def test_only_what_was_given_is_written_unless_resolved() -> None:
    recipe = of(Attention, pattern=of(Window, width=5))
    assert write(recipe) == {"kind": "attention", "pattern": {"kind": "window", "width": 5}}
    assert write(recipe, resolved=True) == {
        "kind": "attention",
        "score": {"kind": "dot", "scale": None, "temperature": 1.0},
        "pattern": {"kind": "window", "width": 5, "both": False, "itself": True},
        "position": None,
        "compress": None,
        "groups": None,
        "cross": False,
        "bias": True,
        "dropout": 0.0,
    }


@pytest.mark.parametrize("cls", registered(), ids=lambda c: f"{c.__module__.split('.')[1]} {kind_of(c)}")
def test_every_part_reads_back_as_it_was_written(cls: type) -> None:
    """Of networks, tokens, tasks and training alike."""
    family = cls.__mro__[1] if cls.__mro__[1] is not object else cls
    for change in variants(cls):
        recipe = example(cls, **change)
        assert read(family, json.loads(json.dumps(write(recipe)))) == recipe
        resolved = write(recipe, resolved=True)
        assert write(read(family, json.loads(json.dumps(resolved)))) == resolved


def test_defaults_written_out_survive_a_change_of_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder holds the resolved form, so that history is not rewritten."""
    recipe = systems()["gpt"][""]
    resolved = write(recipe, resolved=True)
    before = build(read(Model, resolved))
    monkeypatch.setattr(Layer.__init__, "__defaults__", (0.5, False))
    takes.cache_clear()
    after = build(read(Model, resolved))
    takes.cache_clear()
    assert [n for n, _ in before.named_parameters()] == [n for n, _ in after.named_parameters()]
    assert {m.eps for m in after.modules() if isinstance(m, Layer)} == {1e-5}


words = st.sampled_from


def attention_recipes() -> st.SearchStrategy[Recipe[Any]]:
    return st.builds(
        lambda **o: Recipe(Attention, o),
        pattern=pattern_recipes(),
        groups=st.sampled_from([None, 1, 2, 4]),
        bias=st.booleans(),
        score=st.builds(lambda s: of(Dot, scale=s), st.none() | st.floats(0.1, 2.0)),
    )


def pattern_recipes() -> st.SearchStrategy[Recipe[Any]]:
    simple = st.one_of(
        st.just(of(Causal)),
        st.just(of(Full)),
        st.builds(lambda w, b: of(Window, width=w, both=b), st.integers(1, 9), st.booleans()),
        st.builds(lambda n: of(Prefix, length=n), st.integers(0, 5)),
    )
    joins = st.builds(
        lambda k, p: Recipe(k, {"patterns": p}), words([AllOf, PerHead]), st.lists(simple, min_size=1)
    )
    return simple | joins


def model_recipes() -> st.SearchStrategy[Recipe[Any]]:
    ffn = st.one_of(
        st.builds(lambda h: of(Dense, hidden=h), st.none() | st.integers(1, 30)),
        st.builds(lambda a: of(Gated, activation=a), words(["relu", "gelu", "silu"])),
        st.builds(lambda n: of(Chunked, body=of(Gated, hidden=8), size=n), st.integers(1, 9)),
    )
    norm = st.builds(lambda k, e: Recipe(k, {"eps": e}), words([Layer, Rms]), st.floats(1e-12, 0.1))
    block = st.builds(
        lambda a, f, n, o, s: Recipe(
            Serial,
            {"sublayers": {"self": a, "ffn": f}, "norm": n, "order": o, "residual": of(Scaled, body=s)},
        ),
        attention_recipes(),
        ffn,
        norm,
        words(["pre", "post"]),
        st.floats(0.1, 1.0),
    )
    stack = st.builds(
        lambda b, p, d: Recipe(Sequential, {"block": b, "position": p, **({"dims": d} if d else {})}),
        block | st.lists(block, min_size=1, max_size=2),
        st.none() | words([of(Rotary, pairs="neighbours"), of(Learned), of(T5Bias, buckets=8, distance=9)]),
        st.none() | st.builds(lambda n: {"layers": n}, st.integers(1, 3)),
    )
    return st.builds(
        lambda s: Recipe(
            Decoder,
            {
                "embed": example(kinds(regard.nn.embed.Embed)["tokens"]),
                "stack": s,
                "head": example(kinds(Head)["linear"]),
                "dims": {"width": 8, "heads": 4, "layers": 2, "length": 12},
            },
        ),
        stack,
    )


@given(model_recipes())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_recipes_read_back_and_build_the_same(recipe: Recipe[Any]) -> None:
    assert read(Model, json.loads(json.dumps(write(recipe)))) == recipe
    resolved = read(Model, json.loads(json.dumps(write(recipe, resolved=True))))
    assert read(Model, write(resolved)) == resolved
    one, two = build(recipe).state_dict(), build(resolved).state_dict()
    assert one.keys() == two.keys() and all((one[n] == two[n]).all() for n in one)


# ---- parts of other kinds


@dataclass
class Rates:
    """A dataclass as an option."""

    warm: int
    peak: float = 0.5


class Thing:
    """A family without dims."""


class Wheel(Thing):
    """All that annotations may say."""

    def __init__(
        self,
        name: str,
        mode: Literal["a", "b"] | int = "a",
        pair: tuple[int, float] = (1, 2.0),
        many: tuple[str, ...] = (),
        table: dict[str, list[int]] | None = None,
        rates: Rates | None = None,
        numbers: Dims | None = None,
        inner: Recipe[Thing] | None = None,
    ) -> None:
        self.given = dict(vars(), self=None)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> type[Wheel]:
    monkeypatch.setattr("regard.spec.PARTS", list(regard.spec.PARTS))
    return part(Wheel)


def test_everything_that_an_annotation_may_say(wheel: type[Wheel]) -> None:
    data = {
        "kind": "wheel",
        "name": "n",
        "mode": 3,
        "pair": [4, 5],
        "many": ["x", "y"],
        "table": {"k": [1, 2]},
        "rates": {"warm": 3},
        "inner": {"name": "m", "mode": "b"},
    }
    recipe = read(Thing, data)
    assert recipe.options["pair"] == (4, 5.0) and recipe.options["rates"] == Rates(3)
    assert recipe.options["many"] == ("x", "y") and recipe.options["inner"] == of(Wheel, name="m", mode="b")
    assert read(Thing, json.loads(json.dumps(write(recipe)))) == recipe
    assert write(recipe, resolved=True)["rates"] == {"warm": 3, "peak": 0.5}
    assert not takes_dims(wheel) and recipe.build().given["name"] == "n"


def test_everything_that_does_not_fit_an_annotation(wheel: type[Wheel]) -> None:
    data = {
        "mode": "c",
        "pair": [4],
        "many": "xy",
        "table": {"k": ["1"]},
        "rates": {"warm": 3, "peek": 1},
        "inner": {"name": 3},
    }
    assert list(problems(Thing, data)) == [
        "mode",
        "pair",
        "many",
        "table.k.0",
        "rates.peek",
        "inner.name",
        "name",
    ]
