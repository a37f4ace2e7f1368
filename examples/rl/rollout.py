"""A rollout worker: acts by the newest weights, has the actions rewarded, sends what it saw to a rank of the trainer.

It holds nothing that matters: when it is killed another one takes its place, and the trainer does not notice.
"""

import itertools
import time

import torch
from common import WIDTH, ask, policy

from holdfast import roles

BATCH, PAUSE_S = 64, 0.05

torch.set_num_threads(1)
model = policy()
roles.announce(1024 + roles.index())  # it serves nothing: announced once it works, it counts as a good run
for turn in itertools.count(roles.index()):
    trainers, rewarders = roles.wait_for("trainer"), roles.wait_for("reward")
    try:
        address = trainers[sorted(trainers)[turn % len(trainers)]]
        model.load_state_dict(ask(address, None))
        states = torch.randn(BATCH, WIDTH)
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=model(states)).sample()
        earned = ask(rewarders[min(rewarders)], (states, actions))
        ask(address, {"states": states, "actions": actions, "rewards": earned})
    except OSError:
        pass  # it is being replaced: the next turn finds its new address
    time.sleep(PAUSE_S)
