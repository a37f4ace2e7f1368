"""Downloads that appear under their name only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from holdfast.errors import UnavailableError


@contextmanager
def landing(path: Path, key: str, nbytes: int) -> Iterator[IO[bytes]]:
    """Yield a file that becomes ``path`` at the end; nothing is left of one that fails.

    Args:
        path: where it appears; folders are made.
        key: of the object, for the message.
        nbytes: its size, which the file must have.

    Raises:
        UnavailableError: the file has another size.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.close()
            if (got := os.path.getsize(file.name)) != nbytes:
                raise UnavailableError(
                    f"object {key!r} changed during its download: {got} of {nbytes} bytes."
                )
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
