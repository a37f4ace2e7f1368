"""A worker: takes the parameters, computes a gradient, sends each server its part. Any number of them may run."""

import time

import torch
from common import SERVERS, WIDTH, loss, pull, push

from holdfast import roles

BATCH, PAUSE_S = 128, 0.05

torch.set_num_threads(1)
roles.announce(1024 + roles.index())  # it serves nothing: announced once it works, it counts as a good run
while True:
    try:
        parts = pull()
        if any(part is None for part in parts):
            raise OSError("a server is empty: the trainer fills it")
        values = torch.cat(parts).requires_grad_()
        loss(values, torch.randn(BATCH, WIDTH)).backward()
        for index, gradient in enumerate(values.grad.chunk(SERVERS)):
            push(index, gradient=gradient)
    except OSError:
        pass  # a server is being replaced: the next turn finds its new address
    time.sleep(PAUSE_S)
