"""What regard runs on: versions, cores, memory, optional packages: for `regard doctor` and run folders."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Which module stands for each extra of pyproject.toml.
EXTRAS = {
    "text": ("sentencepiece",),
    "plot": ("matplotlib",),
    "track": ("tensorboard",),
    "hf": ("transformers",),
    "bench": ("transformers", "x_transformers", "ctranslate2", "local_attention", "psutil"),
    "dev": ("pytest", "hypothesis", "ruff", "mypy"),
}
CORE = ("numpy", "safetensors", "yaml", "typer", "rich", "tokenizers", "sacrebleu", "babel")


@dataclass(frozen=True)
class Report:
    """What `regard doctor` found."""

    data: dict[str, Any]

    def text(self) -> str:
        """For people: one line of versions, one of extras, and what to do if something is missing."""
        d = self.data
        extras = "  ".join(f"{name} {'yes' if there else '-'}" for name, there in d["extras"].items())
        lines = [
            f"regard {d['regard']}   python {d['python']}   torch {d['torch']} "
            f"({', '.join(d['instructions'] + ['kernels'] * d['kernels'])})   "
            f"{d['cores']} cores, {d['threads']} threads, {d['memory_gib']:.0f} GiB   {d['accelerator']}",
            f"extras: {extras}",
        ]
        if d["missing"]:
            lines.append(f"missing: {', '.join(d['missing'])}; pip install {' '.join(d['missing'])}")
        else:
            lines.append("everything needed for `regard demo` is here")
        lines += d["advice"]
        return "\n".join(lines)


def doctor() -> Report:
    """Look at the machine and the installation."""
    import torch

    from regard.native import library

    found = facts()
    cuda = torch.cuda.is_available()
    advice = []
    if torch.version.cuda is not None and not cuda:
        advice.append("torch is a CUDA build, but no GPU answers; a CPU build would be much smaller")
    if found["threads"] > found["cores"]:
        advice.append(
            f"{found['threads']} threads share {found['cores']} cores; set OMP_NUM_THREADS={found['cores']}"
        )
    if not (kernels := library() is not None):
        advice.append(
            "kernels in C were not compiled for this processor: beams take half as long again; "
            "with a C compiler there, install regard again (docs/install.md)"
        )
    instructions = [torch.backends.cpu.get_cpu_capability()]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        instructions.append("bf16")
    extras = {name: all(find_spec(m) is not None for m in modules) for name, modules in EXTRAS.items()}
    missing = [name for name in CORE if find_spec(name) is None]
    accelerator = torch.cuda.get_device_name() if cuda else "no accelerator"
    more = {"instructions": instructions, "kernels": kernels, "accelerator": accelerator, "extras": extras}
    return Report({**found, **more, "missing": missing, "advice": advice})


def facts() -> dict[str, Any]:
    """What a run's records should say about where it ran."""
    import torch

    return {
        "regard": package("regard"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": package("numpy"),
        "safetensors": package("safetensors"),
        "tokenizers": package("tokenizers"),
        "system": f"{platform.system()} {platform.machine()}",
        "host": platform.node(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory() / 2**30, 1),
    }


def package(name: str) -> str:
    """The version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the container's if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total
