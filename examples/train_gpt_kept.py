"""Train as ``train_gpt.py`` does, in processes that outlive the death of another rank.

holdfast submit examples/train_gpt.yaml --script train_gpt_kept.py
"""

from train_gpt import main

import holdfast

if __name__ == "__main__":
    holdfast.run(main)
