"""The weights a model is born with: `init` in a config.

normal   Radford et al. 2019 (GPT-2); Devlin et al. 2019 (BERT) without `depth`
xavier   Glorot and Bengio 2010, as most implementations of Vaswani et al. 2017 do
t5       Raffel et al. 2020, https://arxiv.org/abs/1910.10683, as in the authors' code
fan_in   Child et al. 2019, https://arxiv.org/abs/1904.10509 (Sparse Transformer)
"""

from __future__ import annotations

from typing import cast

from torch import nn

from regard.nn.embed import Embed, Tokens
from regard.nn.ffn import Dense, Gated
from regard.nn.head import Head
from regard.nn.mixer import Attention, Latent, Lsh, Mixer
from regard.nn.position import Axial, Coordinate, Grid, Learned, T5Bias, TransformerXL
from regard.spec import part


class Init:
    """Walks over a model once, when it is built, and draws its matrices; norms stay as they are."""

    def __call__(self, model: nn.Module) -> None:
        """Draw all weights."""
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.draw(model)

    def draw(self, model: nn.Module) -> None:
        """Draw the matrices; biases are zero already."""
        raise NotImplementedError


@part
class Normal(Init):
    r"""N(0, std^2) for every matrix; what is written back to the stream is smaller the more layers write.

        std(out, down) = std / sqrt(number of sublayers)

    Radford et al. 2019, section 2.3, and the released code (openai/gpt-2): 0.02, positions 0.01.

    Options:
      std: for matrices and embeddings
      position: for learned positions; `std` if not given
      depth: make the last matrix of each sublayer smaller by depth
    """

    def __init__(self, std: float = 0.02, position: float | None = None, depth: bool = False) -> None:
        self.std, self.position, self.depth = std, std if position is None else position, depth

    def draw(self, model: nn.Module) -> None:
        """N(0, std^2)."""
        sublayers = sum(isinstance(m, Mixer | Dense | Gated) for m in model.modules())
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding | Embed | Head):
                nn.init.normal_(module.weight, std=self.std)
        for module in model.modules():  # what differs comes after what is common to all
            if isinstance(module, Learned | Grid | Axial | Coordinate):
                for table in module.modules():
                    if isinstance(table, nn.Embedding):
                        nn.init.normal_(table.weight, std=self.position)
            if isinstance(module, TransformerXL):
                for vectors in (module.u, module.v):
                    nn.init.normal_(vectors, std=self.std)
            if self.depth and isinstance(module, Mixer | Dense | Gated):
                last = module.down if isinstance(module, Dense | Gated) else cast(nn.Linear, module.out)
                nn.init.normal_(last.weight, std=self.std / sublayers**0.5)


@part
class Xavier(Init):
    r"""Uniform in +-sqrt(6 / (ins + outs)), q, k and v each by itself; embeddings N(0, 1/D).

    Glorot and Bengio 2010, eq. 16. Vaswani et al. 2017 do not say; this is what most implementations take.
    """

    def draw(self, model: nn.Module) -> None:
        """Xavier, uniform."""
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, Embed | Head | nn.Embedding):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
        for module in model.modules():
            if isinstance(module, Attention):
                size, groups = module.size, module.groups
                parts = [module.kv.weight] if module.cross else [module.qkv.weight]
                heads = [groups, groups] if module.cross else [module.heads, groups, groups]
                for matrix in parts:
                    for rows in matrix.split([h * size for h in heads]):
                        nn.init.xavier_uniform_(rows)
            if isinstance(module, Gated | Latent):
                for rows in module.up.weight.chunk(2):
                    nn.init.xavier_uniform_(rows)
            if isinstance(module, Lsh):
                for rows in module.qkv.weight.chunk(2):
                    nn.init.xavier_uniform_(rows)


@part
class T5(Init):
    r"""The scale that scores lack (no 1/sqrt(K)) is folded into the queries.

        std: q (D K)^-1/2;  k, v, up, bias table D^-1/2;  out (H K)^-1/2;  down F^-1/2;  embedding 1

    Raffel et al. 2020, https://arxiv.org/abs/1910.10683, as in the authors' code (mesh_tensorflow).
    """

    def draw(self, model: nn.Module) -> None:
        """N(0, std^2) with the stds above."""
        for module in model.modules():
            if isinstance(module, Attention):
                first = module.q if module.cross else module.qkv
                width, asks = first.in_features, module.heads * module.size
                nn.init.normal_(first.weight[:asks], std=(width * module.size) ** -0.5)
                nn.init.normal_(module.kv.weight if module.cross else first.weight[asks:], std=width**-0.5)
                nn.init.normal_(module.out.weight, std=asks**-0.5)
            elif isinstance(module, Latent | Lsh):  # not in T5; they scale their own scores
                for matrix in (m for m in module.children() if isinstance(m, nn.Linear)):
                    nn.init.normal_(matrix.weight, std=matrix.in_features**-0.5)
            elif isinstance(module, Dense | Gated):
                nn.init.normal_(module.up.weight, std=module.up.in_features**-0.5)
                nn.init.normal_(module.down.weight, std=module.down.in_features**-0.5)
            elif isinstance(module, Tokens):
                nn.init.normal_(module.weight, std=1.0)
        embeddings = [m.weight for m in model.modules() if isinstance(m, Tokens)]
        for module in model.modules():
            if isinstance(module, T5Bias):
                nn.init.normal_(module.table.weight, std=embeddings[0].shape[1] ** -0.5)
            elif isinstance(module, Head) and all(module.weight is not e for e in embeddings):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


@part
class FanIn(Init):
    r"""N(0, gain^2 / ins) for every matrix: what comes out is as large, whatever goes in. Answers are zero.

        std = gain / sqrt(ins);   out, down: / sqrt(number of sublayers) besides;   tables: gain / sqrt(D);
        head: 0

    Child et al. 2019 (Sparse Transformer), section 5.2 and 6, https://arxiv.org/abs/1904.10509.

    Options:
      gain: as above
    """

    def __init__(self, gain: float = 0.125) -> None:
        self.gain = gain

    def draw(self, model: nn.Module) -> None:
        """N(0, gain^2 / ins)."""
        sublayers = sum(isinstance(m, Mixer | Dense | Gated) for m in model.modules())
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding | Embed):
                nn.init.normal_(module.weight, std=self.gain * module.weight.shape[1] ** -0.5)
        for module in model.modules():
            if isinstance(module, Mixer | Dense | Gated):
                last = module.down if isinstance(module, Dense | Gated) else cast(nn.Linear, module.out)
                nn.init.normal_(last.weight, std=self.gain * (last.in_features * sublayers) ** -0.5)
        for module in model.modules():
            if isinstance(module, Head):
                nn.init.zeros_(module.weight)
