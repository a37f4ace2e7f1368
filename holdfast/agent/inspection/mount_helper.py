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
        code = errno.errorcode.get(error.errno or 0, "")
        return {"error": error.strerror, "errno": code, "type": type_of(path)}
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "inodes": found.f_files,
        "inodes_free": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def type_of(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of the file system on which ``path`` lies, without a look at it; empty: not known."""
    deepest, found = -1, ""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            for line in file:
                _, point, kind, *_ = (*line.split(" "), "", "", "")
                point = point.replace("\\040", " ")
                within = f"{path}/".startswith(point.rstrip("/") + "/")
                # Of two at one place the later one lies above.
                if point.startswith("/") and within and len(point) >= deepest:
                    deepest, found = len(point), kind
    except OSError:
        pass
    return found


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(look(line.rstrip("\n"))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
