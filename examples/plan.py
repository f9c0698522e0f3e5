"""Which GPU and recipe serve a chat cheapest, and how many of them its users need. Nothing is downloaded.

python examples/plan.py [model]     a name that the planner knows, a directory with config.json, a GGUF file
"""

import sys

from tessera import plan
from tessera.planner import compare, decide
from tessera.planner.fleet import Slo
from tessera.planner.provision import Traffic, provision

PRICES = {"h100-sxm": 2.5, "h200": 3.5, "l40s": 1.1}
"""Dollars of a GPU-hour."""


def main(model: str = "llama-3.1-8b") -> None:
    found = compare(model, list(PRICES), ["bf16", "fp8", "qoq-g128"], workload="chat", prices=PRICES)
    for candidate in found:
        if candidate.plan is None:
            print(f"{candidate.gpu} {candidate.recipe}: {candidate.reason}")
        else:
            cost, time = candidate.plan["cost_with_prefill"], candidate.plan["tpot_predicted"]
            print(f"{candidate.gpu} {candidate.recipe}: {cost.text}, {time.text} a token")

    best = found[0]
    made = plan(model, best.gpu, best.recipe, workload="chat", tp=best.tp, price=PRICES[best.gpu])
    print(made["max_batch"].explain())
    print(decide(made.setting).text)
    promise = Slo(ttft_s=0.5, tpot_s=0.03)
    fleet = provision(made, Traffic(users=10_000, think_s=20), promise)
    print(f"10,000 users: {fleet.smallest.gpus} GPUs, {fleet.cost.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
