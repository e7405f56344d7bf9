"""What each token thinks by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.context import Context

Activation = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "gelu_sigmoid",
    "silu",
    "elu",
    "selu",
    "sigmoid",
    "softplus",
    "tanh",
    "identity",
]


def _identity(x: Tensor) -> Tensor:
    return x


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(x, 0); Vaswani et al. 2017
    "gelu": F.gelu,  # x Phi(x); Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    "gelu_tanh": _gelu_tanh,  # x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); GPT-2
    "gelu_sigmoid": _gelu_sigmoid,  # x s(1.702 x); Child et al. 2019
    "silu": F.silu,  # x s(x), also called swish; Ramachandran et al. 2017, https://arxiv.org/abs/1710.05941
    "elu": F.elu,  # x > 0 ? x : e^x - 1; Clevert et al. 2016, https://arxiv.org/abs/1511.07289
    "selu": F.selu,  # 1.0507 (x > 0 ? x : 1.67326 (e^x - 1)); Klambauer et al. 2017, https://arxiv.org/abs/1706.02515
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,  # log(1 + e^x)
    "tanh": torch.tanh,
    "identity": _identity,
}


class FFN(nn.Module):
    """x_BLD -> y_BLD, each token alone."""

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """What each token says to itself."""
        raise NotImplementedError
