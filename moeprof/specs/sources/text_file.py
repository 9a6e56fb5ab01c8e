"""Question: what is the text of a small configuration file, or why can it not be read?"""

from __future__ import annotations

from pathlib import Path

from moeprof.errors import SpecError

MOST_BYTES = 4 * 2**20


def read_text(path: Path, what: str) -> str:
    """The text of a file of at most `MOST_BYTES`; ``what`` names the kind expected.

    Raises:
        SpecError: there is none, it is no regular file, too large, not readable or not UTF-8.
    """
    try:
        if not path.exists():
            raise SpecError(f"{path}: expected {what}, found no such file.")
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise SpecError(f"{path}: expected {what}, found {kind}. Give the file itself.")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise SpecError(
                f"{path}: expected {what} of at most {MOST_BYTES >> 20} MiB, found "
                f"{size / 2**20:.0f} MiB. Is it weights or a trace?"
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: expected {what} in UTF-8, found byte {error.object[error.start]:#04x} at "
            f"{error.start}."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"{path}: {what} cannot be read ({reason}).") from None
