"""What can go wrong, by whose turn it is to act. The command line turns each class into its exit code."""

from __future__ import annotations


class UsageError(ValueError):
    """A config, an option or a call asks for what cannot be. Exit code 2."""

    code = 2


class DataError(ValueError):
    """A data file does not hold what it must. Exit code 65."""

    code = 65


class CheckFailed(Exception):
    """A file is not what its manifest says, or a proof does not hold. Exit code 1."""

    code = 1


class DiskError(OSError):
    """The disk is full, read-only or gone; what was saved before is intact. Exit code 74."""

    code = 74


class TryAgain(Exception):
    """Stopped from outside with a checkpoint saved; the same command with --resume goes on. Exit code 75."""

    code = 75
