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

    The script completes commands, options and names of topics, groups and queues. Names come from
    the node at --server or MILLSTREAM_SERVER; if it does not answer quickly, none are offered. Add
    this to the start-up file of your shell:

    \b
        bash   eval "$(millstream completion bash)"
        zsh    eval "$(millstream completion zsh)"
        fish   millstream completion fish | source

    \b
    Exit status:
        0  printed
        2  wrong usage

    \b
    Example:
        millstream completion bash > ~/.local/share/bash-completion/completions/millstream
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "millstream", "_MILLSTREAM_COMPLETE")
    click.echo(script.source())
