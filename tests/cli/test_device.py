"""`--device auto`, the default: CUDA where torch can use it, and said so; a CPU without a word, or where only it can do it."""

import pytest

from tfkit.cli import main
from tfkit.cli.device import chosen_device
from tfkit.cli.dispatch import COMMANDS, commands


@pytest.mark.parametrize(
    ("device", "cpu", "there", "chosen", "said"),
    [
        ("auto", False, True, "cuda", "device: cuda (NVIDIA X); --device cpu uses the CPU\n"),
        ("auto", False, False, "cpu", ""),
        ("auto", True, True, "cpu", ""),
        ("cpu", False, True, "cpu", ""),
        ("cuda:1", False, False, "cuda:1", ""),
    ],
)
def test_the_device_is_chosen_once_and_named_where_it_is_no_cpu(device, cpu, there, chosen, said, monkeypatch, capsys, gpu):
    gpu(there)
    assert chosen_device(device, cpu) == chosen
    assert capsys.readouterr() == ("", said)
    monkeypatch.setenv("RANK", "1")
    assert (chosen_device(device, cpu), capsys.readouterr().err) == (chosen, "")  # one process speaks for all


def test_every_command_that_runs_a_model_has_it(small, monkeypatch, capsys, gpu):
    devices = {}
    for name in COMMANDS:
        command = commands.get_command(None, name)
        for option in command.params:
            if "--device" in option.opts:
                devices[name] = option.default
    assert {name for name, default in devices.items() if default == "auto"} == {
        "build", "train", "compare", "translate", "generate", "answer", "classify", "fill", "serve", "tag", "look", "rescore",
    }  # fmt: skip
    assert devices["plan"] != "auto", "it needs no torch and no device"
    gpu(True)
    monkeypatch.setattr("tfkit.cli.device.device_here", lambda device: pytest.fail(device) if device != "cuda" else 1 / 0)
    assert main(["build", str(small)]) == 1  # it asked for CUDA
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert main(["build", str(small), "--device", "tpu"]) == 2
    assert "unknown device `tpu`; write auto, cpu, cuda or cuda:1" in capsys.readouterr().err
