"""`tfkit completion`: the script that completes commands, options and names in a shell. The shell then runs tfkit with
`_TFKIT_COMPLETE` set, which `dispatch` passes to click."""

from __future__ import annotations

import click

from .options import OneOf, common
from .output import print_json, print_text

VARIABLE = "_TFKIT_COMPLETE"
EPILOG = """\b
bash    eval "$(tfkit completion bash)"      in ~/.bashrc, bash 4.4 or newer
zsh     eval "$(tfkit completion zsh)"       in ~/.zshrc
fish    tfkit completion fish | source       in ~/.config/fish/config.fish

\b
--json prints an object with `shell` and `script`.
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=OneOf("shell", ["bash", "zsh", "fish"]), metavar="bash|zsh|fish", help="The shell.")
@common
def command(shell: str, as_json: bool) -> int:
    """Print the script that completes commands, options and names."""
    from click.shell_completion import get_completion_class

    from .dispatch import commands

    completion = get_completion_class(shell)
    assert completion is not None
    script = completion.source_template % completion(commands, {}, "tfkit", VARIABLE).source_vars()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print_text(script)
    return 0
