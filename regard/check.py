"""`regard check`: every file of a run, a checkpoint, a model or a corpus is what it says it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from regard.errors import CheckFailed, DataError, UsageError


def check(path: str | Path) -> list[str]:
    """Verify a path: a line for each thing that is right, or CheckFailed naming all that are not."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path}: there is nothing of this name to check.")
    good: list[str] = []
    bad: list[str] = []
    for what, verify in _jobs(path):
        try:
            good.append(f"ok   {what}   {verify()}".rstrip())
        except (CheckFailed, DataError, UsageError) as error:
            bad.append(str(error))
        except OSError as error:
            bad.append(f"{error.filename or what}: {error.strerror or error}.")
    if bad:
        raise CheckFailed("\n".join(bad))
    return good


def _jobs(path: Path) -> Iterator[tuple[Path, Callable[[], str]]]:
    """What there is to verify under a path."""
    if path.is_file():
        yield path, lambda: _file(path)
    elif (path / "manifest.json").is_file():
        yield path, lambda: _checkpoint(path)
    elif (path / "config.yaml").is_file():
        yield path / "config.yaml", lambda: _run_file(path / "config.yaml")
        for folder in sorted((path / "checkpoints").glob("step-*")):
            yield folder, lambda folder=folder: _checkpoint(folder)  # type: ignore[misc]
        for name, verify in (("tokens", _tokens), ("model", _model)):
            if (path / name).is_dir():
                yield path / name, lambda name=name, verify=verify: verify(path / name)  # type: ignore[misc]
        for index in sorted((path / "data").glob("*/index.json")):
            yield index.parent, lambda index=index: _shards(index.parent)  # type: ignore[misc]
    elif (path / "config.json").is_file() or (path / "model.safetensors").is_file():
        yield path, lambda: _model(path)
    elif (path / "index.json").is_file():
        yield path, lambda: _shards(path)
    else:
        raise UsageError(f"{path} is no run, checkpoint, model or corpus: it has none of their files.")


def _file(path: Path) -> str:
    if path.suffix in (".yaml", ".yml", ".toml"):
        return _run_file(path)
    if path.suffix == ".safetensors":
        return _tensors(path)
    return _text(path)


def _text(path: Path) -> str:
    from regard.data.text import read_lines

    empty = count = 0
    for line in read_lines(path, need=True):
        count, empty = count + 1, empty + (not line.strip())
    return f"{count:,} lines" + (f", {empty:,} of them empty" if empty else "")


def _run_file(path: Path) -> str:
    from regard.run import read_run

    run = read_run(path)
    return "run file" if run.task else "model file"


def _checkpoint(path: Path) -> str:
    from regard.train.checkpoint import verify

    return f"checkpoint of step {verify(path).step:,}"


def _tokens(path: Path) -> str:
    from regard.data.tokens import load_tokens

    return f"{load_tokens(path).vocab:,} tokens"


def _model(path: Path) -> str:
    from regard.save import load_model

    model = load_model(path)
    wrong = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    if wrong:
        raise CheckFailed(f"{path / 'model.safetensors'}: {wrong[0]} holds a number that is not finite.")
    return f"{sum(p.numel() for p in model.parameters()):,} parameters"


def _tensors(path: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            for name in names:
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    raise CheckFailed(f"{path}: {name} holds a number that is not finite.")
    except SafetensorError as error:
        raise CheckFailed(f"{path} is damaged or cut short: {error}.") from None
    return f"{len(names)} tensors"


def _shards(path: Path) -> str:
    from regard.data.shards import Shards

    shards = Shards.open(path)
    verify = getattr(shards, "verify", None)
    if verify is not None:
        verify()
    return f"{len(shards):,} tokens"
