"""`stayfinite live RUN`: the page of a run while it goes on, in a browser or on the terminal."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path

import click

_PORT = 8642
_HERE = ("127.0.0.1", "localhost", "::1")
_HOSTS = ["127.0.0.1", "localhost", "["]  # "[" is what is left of "[::1]:8642" before its first colon


@click.command("live")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help=f"[default: {_PORT}, or a free one]")
@click.option("--no-token", is_flag=True, help="Let in everyone who can reach the address.")
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option("--terminal", is_flag=True, help="Show the run here instead of in a browser.")
def command(run: Path, host: str, port: int | None, no_token: bool, show: bool, terminal: bool) -> None:
    """Show RUN, the folder of a run or of several, while it goes on.

    The folder may appear later. Nothing is written to it. Ctrl-C ends the page, not the run.

    \b
    stayfinite live runs/a
    stayfinite live runs              all runs in a list
    stayfinite live runs/a --terminal
    """
    if run.is_file():
        click.echo(f"Error: {run} is a file; name the folder of a run, or of several", err=True)
        sys.exit(2)
    if terminal:
        from stayfinite.report.live.terminal import show_in_terminal

        show_in_terminal(run)
        return
    try:
        import uvicorn

        from stayfinite.report.live.server import LiveServer
    except ModuleNotFoundError as missing:
        click.echo(
            f"Error: live needs {missing.name}; install it with: pip install 'stayfinite[live]' (or add --terminal)",
            err=True,
        )
        sys.exit(2)
    listening = _listen(host, port)
    token = None if no_token else secrets.token_urlsafe(16)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
    local = host in _HERE
    if not local and no_token:
        click.echo("everyone who can reach this machine can see the run", err=True)
    live = LiveServer(run)
    app = live.app(token, _HOSTS if local else [])
    click.echo(f"{run} is live at {address}")
    click.echo("Ctrl-C ends the page, not the run.", err=True)
    if show:
        click.launch(address)
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=3, access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    live.ends = lambda: server.should_exit
    with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has shut down
        server.run(sockets=[listening])


def _listen(host: str, port: int | None) -> socket.socket:
    """The port that was asked for; the usual one or any free one where none was."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    trouble: OSError | None = None
    for candidate in (port,) if port is not None else (_PORT, 0):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, candidate))
            made.listen()  # from here on the printed address answers
        except OSError as error:
            made.close()
            trouble = error
            continue
        return made
    click.echo(
        f"Error: cannot listen on {host}, port {port or _PORT}: {trouble.strerror if trouble else 'unknown'}; "
        "choose another --port or --host",
        err=True,
    )
    sys.exit(2)
