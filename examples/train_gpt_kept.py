"""Train as ``train_gpt.py`` does, in processes that outlive the death of another rank.

To submit it, write ``script: train_gpt_kept.py`` into ``train_gpt.yaml``.
"""

from train_gpt import main

import holdfast

if __name__ == "__main__":
    holdfast.run(main)
