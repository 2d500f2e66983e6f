"""`bamboo init`: write down what stands in your account, for the jobs that run there."""

import json

import click

from bamboo.config.account import account_defaults, account_file
from bamboo.errors import InputError
from cli.new_file import write_new
from cli.stack import account_toml, cloud_of, read_outputs

ONLY_ME = 0o600


@click.command("init")
@click.argument("source", default="terraform")
@click.option("--force", is_flag=True, help="Replace an account file that says something else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(source: str, force: bool, as_json: bool) -> None:
    """Write down what stands in your account, for the jobs that run there.

    SOURCE is the directory of the applied stack, a file with what `terraform output -json` says
    there, or - for standard input. Region, zones, subnets, launch template, security group,
    instance profile, bucket and the name of the store's secret go into
    $XDG_CONFIG_HOME/bamboo/cloud.toml (or BAMBOO_CONFIG); a job with cloud.provider = "ec2" takes
    from there what it does not say itself. `bamboo launch --dry-run` shows what comes of it.
    """
    cloud = cloud_of(read_outputs(source))
    path = account_file()
    differ = _differences(cloud, force=force) if path.exists() else None
    if differ and not force:
        raise InputError(
            f"{path} is there already, with another {', '.join(differ)}; "
            "--force replaces it, BAMBOO_CONFIG names another file"
        )
    written = differ is None or bool(differ)
    if written:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{path.parent} cannot be made: {error.strerror}; "
                "give another file with BAMBOO_CONFIG"
            ) from error
        write_new(path, account_toml(cloud).encode(), force=force, mode=ONLY_ME)
    if as_json:
        click.echo(json.dumps({"file": str(path), "written": written, "cloud": cloud}))
        return
    click.echo(f"{path}: {'written' if written else 'says so already, nothing was changed'}")
    for name, value in cloud.items():
        listed = [one if isinstance(one, str) else one["id"] for one in value]
        click.echo(f"  {name:17}{value if isinstance(value, str) else ', '.join(listed)}")


def _differences(cloud: dict[str, object], *, force: bool) -> list[str]:
    """The keys in which the file that is there says something else."""
    try:
        before = account_defaults()
    except InputError:
        if not force:
            raise
        return ["content"]
    return sorted(k for k in before.keys() | cloud.keys() if before.get(k) != cloud.get(k))
