"""Runs in a process of its own: `python ejected_models.py DIRECTORY` compares ejected models with what tfkit computed.

Every model has the files NAME.py, NAME.safetensors and NAME.pt: inputs, weights of the loss, outputs, gradients, decoded ids.
Prints the differences as JSON, by model.
"""

import importlib.util
import json
import sys
import traceback
from pathlib import Path

sys.modules["tfkit"] = None  # `import tfkit` fails

import torch  # noqa: E402
from torch import Tensor  # noqa: E402


def difference(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """The largest difference, relative to the largest value or `floor`: some gradients are rounding errors alone."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).detach().abs().max()) / max(float(theirs.abs().max()), floor, 1e-300)


def compare(path: Path) -> dict[str, object]:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    facts = torch.load(path.with_suffix(".pt"))
    model = getattr(module, "Transformer" if hasattr(module, "Transformer") else "Model")().double().eval()
    model.load_state_dict(module.load_safetensors(str(path.with_suffix(".safetensors"))))
    outputs = model(**facts["inputs"])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    worst, loss = {}, 0.0
    for name, output in zip(facts["outputs"], outputs, strict=True):
        weight = facts["weights"][name]
        shown = weight != 0
        worst[name] = difference(output[shown], facts["outputs"][name][shown])
        loss = loss + (output * weight).sum()
    loss.backward()
    floor = 1e-3 * max(float(gradient.abs().max()) for gradient in facts["gradients"].values() if gradient is not None)
    for name, parameter in model.named_parameters():
        theirs = facts["gradients"].pop(name)
        if theirs is not None:
            worst[f"gradient of {name}"] = difference(parameter.grad, theirs, floor)
        elif parameter.requires_grad and parameter.grad is not None and parameter.grad.any():
            worst[f"gradient of {name}"] = float("inf")
    result = {"worst": max(worst.values()), "where": max(worst, key=worst.get), "left": list(facts["gradients"])}
    if "decoded" in facts:
        ids = module.greedy(model, **facts["decoding"], max_new_tokens=facts["decoded"].shape[1])
        new = ids[:, facts["prompt"] :]
        result["greedy"] = all(
            new[row, :length].tolist() == facts["decoded"][row, :length].tolist() for row, length in enumerate(facts["lengths"])
        )
    return result


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for path in sorted(Path(sys.argv[1]).glob("*.py")):
        try:
            results[path.stem] = compare(path)
        except Exception:
            results[path.stem] = {"failed": traceback.format_exc(limit=-1)}
    print(json.dumps(results))


main()
