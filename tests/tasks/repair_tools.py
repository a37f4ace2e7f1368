"""Stub tools of GPU vendors on PATH, which behave as the real ones were seen to: words, exit statuses, time, failures.

nvidia-smi: `nvidia-smi --help` for its exit statuses; the refusals are those of NVIDIA/NVSentinel issue 1690 (in use
while persistence mode is on: 255) and NVIDIA/gpu-operator issue 118. dcgmi: JSON as of DCGM 4; it ends with 226 when a
test failed.
"""

from __future__ import annotations

from pathlib import Path

SMI = r"""#!/bin/sh
here=$(dirname "$0")
echo "nvidia-smi $*" >> "$here/calls"
mode=$(cat "$here/smi")
case "$*" in
*persistence_mode*) cat "$here/persistence"; exit 0;;
--persistence-mode=0) echo Disabled > "$here/persistence"; echo "All done."; exit 0;;
--persistence-mode=1) echo Enabled > "$here/persistence"; echo "All done."; exit 0;;
*--query-gpu=name*)
  [ "$mode" = lost ] && { echo "No devices were found"; exit 6; }
  echo "NVIDIA H100 80GB HBM3"; echo "NVIDIA H100 80GB HBM3"; exit 0;;
--gpu-reset)
  [ "$mode" = hangs ] && { sleep 600 & wait; }
  if [ "$mode" = busy ] || grep -q Enabled "$here/persistence"; then
    echo "The following GPUs could not be reset:"
    echo "  GPU 00000000:1A:00.0: In use by another client"
    echo
    echo "1 device is currently being used by one or more other processes (e.g. Fabric Manager, CUDA application)."
    exit 255
  fi
  [ "$mode" = fallen ] && { echo "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost."; exit 15; }
  sleep 0.05
  echo "GPU 00000000:1A:00.0 was successfully reset."; echo "All done."; exit 0;;
esac
exit 2
"""
DCGMI = r"""#!/bin/sh
here=$(dirname "$0")
echo "dcgmi $*" >> "$here/calls"
case "$(cat "$here/dcgmi-mode")" in
fails)
  echo '{"category":"Hardware","tests":[{"name":"eud","results":[{"gpu_id":"3","status":"Fail",'
  echo '"warnings":[{"warning":"EUD found a failing memory row"}]}]}]}'
  exit 226;;
settings)
  echo '{"tests":[{"name":"eud","results":[{"gpu_id":"0","status":"Pass"}]},{"name":"Persistence Mode","results":['
  echo '{"gpu_id":"0","status":"Fail","warnings":[{"warning":"Persistence mode is disabled","error_severity":5}]}]}]}'
  exit 226;;
broken) echo "Error: unable to establish a connection to the specified host: localhost"; exit 1;;
*) echo '{"tests":[{"name":"eud","results":[{"gpu_id":"0","status":"Pass"},{"gpu_id":"1","status":"Pass"}]}]}'; exit 0;;
esac
"""


class Tools:
    """A folder of stubs, first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in (("nvidia-smi", SMI), ("dcgmi", DCGMI)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "persistence").write_text("Enabled\n")
        self.be(smi="works", dcgmi="passes")

    def be(self, smi: str = "", dcgmi: str = "") -> None:
        """Behave so from now on."""
        if smi:
            (self.folder / "smi").write_text(smi)
        if dcgmi:
            (self.folder / "dcgmi-mode").write_text(dcgmi)

    @property
    def calls(self) -> list[str]:
        """Command lines, in their order."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def persistence(self) -> str:
        return (self.folder / "persistence").read_text().strip()
