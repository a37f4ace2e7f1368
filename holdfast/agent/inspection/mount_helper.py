"""Looks at mounts in a process of its own, which may get stuck in the kernel. Imports next to nothing.

Run as a script: a path per line on stdin, a JSON object per line on stdout.
"""

import errno
import json
import os
import sys


def look(path: str) -> dict[str, object]:
    """Return the state of the file system under ``path``."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"error": error.strerror, "errno": errno.errorcode.get(error.errno or 0, "")}
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "inodes": found.f_files,
        "inodes_free": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(look(line.rstrip("\n"))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
