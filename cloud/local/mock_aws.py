"""The AWS of a local run: moto in this process, with what moto lacks put in front of it.

One HTTP server on the loopback answers the EC2 API and, below `/imds/`, the metadata services. In
front of moto stand: refusals for lack of capacity, lost answers, spot prices, quotas, idempotent
client tokens, and a CreateFleet that goes through its pools. This is the one file that looks inside
moto; requests to it are taken one at a time.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlencode

from bamboo.ids import InstanceId, ZoneId
from cloud.ec2.requests import RUN_TAG
from cloud.local.faults import Market
from cloud.local.metadata import PREFIX, MetadataService
from cloud.local.mock_answers import Answer, price_history, quota, refusal
from cloud.local.mock_fleets import FleetAsked, FleetPool, fleet_created, fleet_id, instance_ids
from cloud.local.mock_repeats import no_such_entity, of_the_gone

# moto reads this when it makes its first backend: thousands of images that nobody asks for.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
Perform: TypeAlias = Callable[[Mapping[str, str], Environ], Answer]

INTERRUPTED = "Server.SpotInstanceTermination"
_LIVE_STATES = ("pending", "running")
_LAUNCHES = ("RunInstances", "CreateFleet")
_CHANGES_INSTANCES = (*_LAUNCHES, "TerminateInstances", "DeleteFleets")


@dataclass(frozen=True, slots=True, kw_only=True)
class MockInstance:
    """An instance as moto has it. `live`: pending or running."""

    instance: InstanceId
    zone: ZoneId
    region: str
    instance_type: str
    lifecycle: str
    state: str
    user_data: str

    @property
    def live(self) -> bool:
        return self.state in _LIVE_STATES


class MockAws:
    """The HTTP server and the handles the host needs. `on_change` is called, from a request's
    thread, after each request that may have started or ended instances. `quotas`: vCPUs by code;
    of all others the account has 0, as a new one."""

    def __init__(
        self,
        *,
        metadata: MetadataService,
        market: Market,
        on_change: Callable[[], None],
        quotas: Mapping[str, float] | None = None,
    ) -> None:
        self._quotas = dict(quotas or {})
        self._metadata = metadata
        self._market = market
        self._on_change = on_change
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._moto_lock = threading.Lock()
        self._answers_by_token: dict[str, Answer] = {}
        self._of_fleet: dict[str, tuple[str, ...]] = {}
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_QuietHandler
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="mock-aws",
            daemon=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; waits for the thread."""
        self._server.shutdown()
        self._thread.join(timeout=5.0)
        self._server.server_close()

    def instances(self) -> tuple[MockInstance, ...]:
        """All instances ever started for a run, ended ones included; an account may have others."""
        with self._moto_lock:
            return tuple(_seen(one) for one in _moto_instances() if _is_of_a_run(one))

    def interrupt(self, instance: InstanceId, *, even_ended: bool = False) -> bool:
        """Take an instance the way the cloud does; False when it is not live any more, unless
        `even_ended`: the cloud had taken it before somebody ended it."""
        with self._moto_lock:
            for found in _moto_instances():
                if found.id == instance and (even_ended or found.state in _LIVE_STATES):
                    found.terminate()
                    found.state_reason = StateReason(
                        f"{INTERRUPTED}: Instance terminated due to no available spot capacity",
                        INTERRUPTED,
                    )
                    return True
        return False

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if str(environ["PATH_INFO"]).startswith(PREFIX):
            answer = self._answer_metadata(environ)
        else:
            answer = self._answer_api(environ)
        start_response(answer.status, list(answer.headers))
        return [answer.body]

    def _answer_metadata(self, environ: Environ) -> Answer:
        headers = {
            name[5:].lower().replace("_", "-"): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        _body(environ)
        response = self._metadata.respond(
            str(environ["REQUEST_METHOD"]), str(environ["PATH_INFO"]), headers
        )
        return Answer(
            status=f"{response.status} {'OK' if response.status == 200 else 'Refused'}",
            headers=(("Content-Type", "text/plain"), *response.headers.items()),
            body=response.body.encode(),
        )

    def _answer_api(self, environ: Environ) -> Answer:
        if str(environ.get("HTTP_X_AMZ_TARGET", "")).endswith(".GetServiceQuota"):
            return quota(self._quotas, _body(environ))
        form = {k: v[0] for k, v in parse_qs(_body(environ).decode(errors="replace")).items()}
        action = form.get("Action", "")
        with self._moto_lock:
            if action == "RunInstances":
                answer = self._once(form, environ, self._run_instances)
            elif action == "CreateFleet":
                answer = self._once(form, environ, self._create_fleet)
            elif action == "DeleteFleets":
                answer = self._delete_fleets(form, environ)
            elif action == "TerminateInstances":
                answer = self._terminate_instances(environ)
            elif action == "DescribeSpotPriceHistory":
                answer = price_history(self._market, form)
            elif action == "RemoveRoleFromInstanceProfile":
                answer = self._remove_role(environ)
            else:
                answer = of_the_gone(form, self._ask_moto(environ))
        if action in _CHANGES_INSTANCES:
            self._on_change()
        if action in _LAUNCHES and self._market.loses_answer():
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    def _terminate_instances(self, environ: Environ) -> Answer:
        """Ending what has ended changes nothing; moto would forget when it ended and why."""
        ended = [
            (one, one.state_reason, one._reason)
            for one in _moto_instances()
            if one.state not in _LIVE_STATES
        ]
        answer = self._ask_moto(environ)
        for one, state_reason, reason in ended:
            one.state_reason, one._reason = state_reason, reason
        return answer

    def _once(self, form: Mapping[str, str], environ: Environ, perform: Perform) -> Answer:
        """Start what is asked for, or tell what the same token started before."""
        token = form.get("ClientToken", "")
        answer = self._answers_by_token.get(token)
        if answer is None:
            answer = perform(form, environ)
            if token and answer.ok:
                self._answers_by_token[token] = answer
        return answer

    def _run_instances(self, form: Mapping[str, str], environ: Environ) -> Answer:
        zone = form.get("Placement.AvailabilityZone", "")
        instance_type = form.get("InstanceType", "")
        fault = self._market.refusal(zone=zone, instance_type=instance_type)
        if fault is not None and fault.grant == 0:
            return refusal(fault.code, f"no capacity for {instance_type} in {zone} at present")
        # moto starts MinCount instances; EC2 starts as many as it has, up to MaxCount.
        wished = int(form.get("MaxCount", "1"))
        given = wished if fault is None else min(wished, fault.grant)
        return self._ask_moto_for({**form, "MinCount": str(given), "MaxCount": str(given)}, environ)

    def _create_fleet(self, form: Mapping[str, str], environ: Environ) -> Answer:
        """Through the pools in the order of their priority, as many of each as there are. moto
        itself takes the first pool for all, and knows no errors; it keeps the fleet's record."""
        asked = FleetAsked.read(form)
        if (fault := self._market.refusal(zone="", instance_type="", of_fleet=True)) is not None:
            return refusal(fault.code, "the fleet as a whole is refused")
        # Of capacity 0, as moto would fill it otherwise; and without the tags of its instances.
        kept = self._ask_moto_for(asked.record(form), environ)
        if not kept.ok:
            return kept
        given: list[tuple[FleetPool, str]] = []
        errors: list[tuple[FleetPool, str]] = []
        for pool in asked.pools:
            missing = asked.count - len(given)
            if asked.one_zone and given and pool.zone != given[0][0].zone:
                continue
            fault = (
                self._market.refusal(zone=pool.zone, instance_type=pool.kind) if missing else None
            )
            number = missing if fault is None else min(missing, fault.grant)
            if number:
                answer = self._ask_moto_for(asked.run_instances(pool, number), environ)
                if not answer.ok:
                    return answer
                given += [(pool, name) for name in instance_ids(answer.body)]
            if fault is not None and number < missing:
                errors.append((pool, fault.code))
        fleet = fleet_id(kept.body)
        self._of_fleet[fleet] = tuple(name for _, name in given)
        return fleet_created(fleet, given, errors, market=asked.market)

    def _delete_fleets(self, form: Mapping[str, str], environ: Environ) -> Answer:
        """With the instances that each started, of which moto does not know."""
        for key, fleet in form.items():
            names = self._of_fleet.pop(fleet, ()) if key.startswith("FleetId.") else ()
            if names and form.get("TerminateInstances") == "true":
                ids = {f"InstanceId.{n}": name for n, name in enumerate(names, start=1)}
                ends = {"Action": "TerminateInstances", "Version": form["Version"], **ids}
                self._ask_moto_for(ends, environ)
        return self._ask_moto_for({**form, "TerminateInstances": "false"}, environ)

    def _remove_role(self, environ: Environ) -> Answer:
        try:
            return self._ask_moto(environ)
        except ValueError:  # so does moto break on a role that is not in the profile
            return no_such_entity("The role is not in the instance profile.")

    def _ask_moto_for(self, form: Mapping[str, str], environ: Environ) -> Answer:
        body = urlencode(form).encode()
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = BytesIO(body), str(len(body))
        ends = form["Action"] == "TerminateInstances"
        return self._terminate_instances(environ) if ends else self._ask_moto(environ)

    def _ask_moto(self, environ: Environ) -> Answer:
        started: list[tuple[str, tuple[tuple[str, str], ...]]] = []

        def start(status: str, headers: Iterable[tuple[str, str]], *_: object) -> None:
            started.append((status, tuple(headers)))

        body = b"".join(self._moto(environ, start))
        status, headers = started[0]
        return Answer(status=status, headers=headers, body=body)


class _QuietHandler(MotoRequestHandler):
    """Keeps connections open (agents poll) and writes no line per request."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        """Nothing: requests are many, and the log is for a person."""


def _body(environ: Environ) -> bytes:
    """The request's body, left readable for whoever comes next."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = BytesIO(body)
    return body


def _moto_instances() -> list[Any]:
    return [
        instance
        for account in ec2_backends.values()
        for backend in account.values()
        for instance in backend.all_instances()
    ]


def _is_of_a_run(instance: Any) -> bool:
    return any(tag["key"] == RUN_TAG for tag in instance.get_tags())


def _seen(instance: Any) -> MockInstance:
    return MockInstance(
        instance=InstanceId(instance.id),
        zone=ZoneId(instance.placement.zone),
        region=instance.region_name,
        instance_type=instance.instance_type,
        lifecycle=instance.lifecycle or "on-demand",
        state=instance.state,
        user_data=str(instance.user_data or ""),
    )
