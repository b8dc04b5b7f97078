"""`millstream completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for shell completion.

    With it, a shell completes commands, options and names.

    Names of topics, groups and queues are those of the node that --server or MILLSTREAM_SERVER
    names; where none answers at once, none are offered. In the file that your shell reads when it
    starts:

    \b
        bash   eval "$(millstream completion bash)"
        zsh    eval "$(millstream completion zsh)"
        fish   millstream completion fish | source

    \b
    Exit status:
        0  here it is
        2  wrong usage

    \b
    Example:
        millstream completion bash > ~/.local/share/bash-completion/completions/millstream
    """  # noqa: D301 - click's mark for lines to leave as they are.
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "millstream", "_MILLSTREAM_COMPLETE")
    click.echo(script.source())
