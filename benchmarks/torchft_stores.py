"""The stores that torchrun would hold for torchft's groups: one at each port given, until it is ended."""

import signal
import sys

from torch.distributed import TCPStore

if __name__ == "__main__":
    stores = [
        TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False) for port in sys.argv[1:]
    ]
    print(f"{len(stores)} stores", flush=True)
    signal.pause()
