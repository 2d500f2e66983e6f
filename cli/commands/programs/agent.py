"""`bamboo agent`: what an instance runs; its environment says everything."""

import logging
import os
import sys

import click

from bamboo import wiring


@click.command("agent", hidden=True)
def command() -> int:
    """Be the agent of this instance (programs call this)."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    return wiring.live_as_agent(os.environ)
