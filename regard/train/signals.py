"""SIGTERM, SIGINT and SIGHUP: finish the step, save, leave with 128 + the signal's number."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from regard.errors import TryAgain


class Stopped(TryAgain):
    """Asked to stop from outside; a checkpoint is saved. `code` is 130 after SIGINT, 143 after SIGTERM."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Signals:
    """While entered, the first signal only asks (`asked`); a second SIGINT stops at once.

    Inside `hurrying()`, where nothing can be lost, the first signal interrupts at once too.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._hurrying = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, number
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._hurrying and not again:
            raise Interrupted

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Inside, a signal raises Interrupted at once: for work that is simply done again."""
        self._hurrying = True
        try:
            if self.asked:
                raise Interrupted
            yield
        finally:
            self._hurrying = False


class Interrupted(BaseException):
    """A signal came during work that can be thrown away. Never leaves the loop."""
